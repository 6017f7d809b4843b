package hostapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxOrder limits the body of a request.
const maxOrder = 64 << 10

// Handler answers the requests of the protocol from a daemon. The caller may
// add further routes.
func Handler(d Daemon) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", answer(func(r *http.Request) (any, error) { return d.Status(r.Context()) }))
	mux.HandleFunc("GET /v1/inventory", answer(func(r *http.Request) (any, error) { return d.Inventory(r.Context()) }))
	mux.HandleFunc("GET /v1/series/{kind}/{name}", answer(func(r *http.Request) (any, error) {
		return d.Series(r.Context(), r.PathValue("kind"), r.PathValue("name"))
	}))
	mux.HandleFunc("POST /v1/accept/{id}", answer(func(r *http.Request) (any, error) {
		return nil, d.Accept(r.Context(), r.PathValue("id"))
	}))
	mux.HandleFunc("POST /v1/cancel/{id}", answer(func(r *http.Request) (any, error) {
		return nil, d.Cancel(r.Context(), r.PathValue("id"))
	}))
	mux.HandleFunc("POST /v1/resume", answer(func(r *http.Request) (any, error) { return nil, d.Resume(r.Context()) }))
	mux.HandleFunc("POST /v1/pause", answer(func(r *http.Request) (any, error) {
		order, err := readPause(http.MaxBytesReader(nil, r.Body, maxOrder))
		if err != nil {
			const example = `an order is, for example, {"for_ns": 60000000000, "why": "a test"}`
			return nil, &Error{http.StatusBadRequest,
				fmt.Errorf("POST /v1/pause: malformed order: %w; %s", err, example)}
		}
		return nil, d.Pause(r.Context(), order.For, order.Why)
	}))
	return mux
}

// readPause reads an order. It refuses unknown fields and null: read as an
// empty order, they would pause the daemon until an operator resumes it.
func readPause(body io.Reader) (PauseOrder, error) {
	var order *PauseOrder
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&order); err != nil {
		return PauseOrder{}, err
	}
	if order == nil {
		return PauseOrder{}, errors.New("it is null")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return PauseOrder{}, errors.New("more data follows the order")
	}
	return *order, order.Validate()
}

// answer writes a result as JSON, and an error as its document and status.
func answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		result, err := do(r)
		if err != nil {
			w.WriteHeader(statusOf(err))
			result = document{message{err.Error()}}
		}
		_ = json.NewEncoder(w).Encode(result) // it fails only if the client has closed the connection
	}
}
