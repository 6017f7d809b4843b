package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
)

const (
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	// endTime is how long requests may still take when the server ends.
	endTime   = 5 * time.Second
	maxHeader = 64 << 10
	// headerTable is the size of the tables of headers of a connection, in bytes. A host's daemon sends few headers;
	// HTTP/2's default, 4096, takes 25 KiB of memory for each of thousands of hosts.
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
	return mux, nil
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
func (s *Server) Serve(ctx context.Context, l net.Listener, certificate tls.Certificate) error {
	handler, err := s.Handler() //nolint:contextcheck // requests have their own
	if err != nil {
		return err
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{MaxDecoderHeaderTableSize: headerTable,
			MaxEncoderHeaderTableSize: headerTable},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: s.CA.Pool(), NextProtos: []string{"h2", "http/1.1"}}}
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
