package daemon

import (
	"net/http"
	"time"
)

// sendTime is how long a client may take to read its answer. It does not limit what happens before the answer: an
// operation on a VM may take minutes.
const sendTime = time.Minute

// timed gives clients sendTime to read their answers, from the first byte of each.
func timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answer{ResponseWriter: w}
		h.ServeHTTP(a, r)
		a.begin() // an answer without a body is sent after this
	})
}

// answer is an answer whose deadline starts when it begins.
type answer struct {
	http.ResponseWriter
	begun bool
}

func (a *answer) begin() {
	if !a.begun {
		a.begun = true
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(sendTime))
	}
}

// WriteHeader begins the answer.
func (a *answer) WriteHeader(status int) {
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

// Write begins the answer, or continues it.
func (a *answer) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}

// Unwrap returns the writer of the connection, which a stream of events flushes and gives deadlines of its own.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
