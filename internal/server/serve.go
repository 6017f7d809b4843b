package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/server/auth"
)

// Deadlines limit how long a slow client holds a connection. 0: the defaults.
type Deadlines struct {
	// Header limits the handshake and the reading of headers; Body that of a body; Answer the deciding and the writing
	// of an answer. Streams have a limit for each message instead.
	Header, Body, Answer time.Duration
}

func (d Deadlines) withDefaults() Deadlines {
	return Deadlines{cmp.Or(d.Header, 10*time.Second), cmp.Or(d.Body, 20*time.Second), cmp.Or(d.Answer, 5*time.Minute)}
}

const (
	idleTime = 2 * time.Minute
	// pingAfter is how long a client may send nothing over HTTP/2 before the server asks it, pingTime how long it may
	// take to answer: connections that are half open end so.
	pingAfter = 30 * time.Second
	pingTime  = 15 * time.Second
	// endTime is how long requests may still take when the server ends.
	endTime   = 5 * time.Second
	maxHeader = 64 << 10
	// headerTable is the size of the table of headers for the answers of a connection, in bytes: HTTP/2's default,
	// 4096, takes memory for each of thousands of hosts. The table of requests has HTTP/2's size, as clients may use
	// all of it before they have read the server's settings; hosts' daemons use as little (package agent).
	headerTable = 256
)

// Handler serves users and daemons.
func (s *Server) Handler() (http.Handler, error) {
	api, err := rest.Handler(s, s.Log)
	if err != nil {
		return nil, err
	}
	agents := s.AgentHandler()
	mux := http.NewServeMux()
	mux.Handle("/agent/", agents)
	mux.Handle("POST /server/v1/loads", s.peerHandler())
	mux.Handle("/", api)
	if s.Telemetry != nil {
		mux.Handle("/api/v1/", s.forViewers(s.Telemetry.Handler()))
	}
	return s.limited(mux), nil
}

// limited ends requests whose body comes too slowly, and answers that are not read. Answers to reads say if the records
// may be old.
func (s *Server) limited(to http.Handler) http.Handler {
	limits := s.Deadlines.withDefaults()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Now().Add(limits.Answer)) // tests have connections without
		if r.Body != nil && r.Body != http.NoBody {
			_ = c.SetReadDeadline(time.Now().Add(limits.Body))
			r.Body = &timedBody{r.Body, c}
		}
		if age := s.alive.unconfirmed(); age > silence && r.Method == http.MethodGet {
			w.Header().Set(fleetapi.AgeHeader, strconv.Itoa(int(age.Seconds())))
		}
		to.ServeHTTP(w, r)
	})
}

// timedBody is a body with a deadline, which ends with the body: over HTTP/1, it would else end the request.
type timedBody struct {
	io.ReadCloser
	connection *http.ResponseController
}

// Read reads from the body.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.connection.SetReadDeadline(time.Time{}) // as above
	}
	return n, err
}

// forViewers lets users pass who may read of all projects: series are of all VMs.
func (s *Server) forViewers(to http.Handler) http.Handler {
	op, _ := fleetapi.OperationByID("get-inventory") // it needs the same
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		u, err := s.Authenticate(r.Context(), token)
		switch {
		case err != nil:
			refuse(w, fleetapi.NewProblem(fleetapi.ProblemUnavailable, "the token cannot be checked now"))
		case u == nil:
			p := fleetapi.NewProblem(fleetapi.ProblemRole, "a token is needed: send 'Authorization: Bearer TOKEN'")
			p.Status = http.StatusUnauthorized
			refuse(w, p)
		case !op.Allows(u, ""):
			refuse(w, fleetapi.NewProblem(fleetapi.ProblemRole, "queries need a viewer of all projects"))
		default:
			to.ServeHTTP(w, r)
		}
	})
}

// Serve answers on a listener, with TLS, until ctx ends. Clients may have a certificate of the CA: daemons do.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	certificate := auth.Renewing(func(now time.Time) (*tls.Certificate, error) {
		return s.CA.ServerCertificate(s.Names, now)
	}, s.Now)
	handler, err := s.Handler() //nolint:contextcheck // requests have their own
	if err != nil {
		return err
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: s.Deadlines.withDefaults().Header, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: headerTable, SendPingTimeout: pingAfter,
			PingTimeout: pingTime},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
			ClientAuth:     tls.VerifyClientCertIfGiven, ClientCAs: s.CA.Pool(),
			NextProtos: []string{"h2", "http/1.1"}}}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if web.Shutdown(last) != nil {
			_ = web.Close() // what is left are streams
		}
	})
	err = web.ServeTLS(l, "", "")
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving: %w", err)
}
