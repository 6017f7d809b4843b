package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// strict refuses what the OpenAPI document does not allow and huma accepts: a parameter of the query that is given
// twice, of which the first one would count, such a header, an empty parameter or header, which would count as absent,
// and null for a field, which would count as left out.
func strict(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	query := r.URL.Query()
	for _, p := range ctx.Operation().Parameters {
		if text := p.Schema.Type == huma.TypeString && len(p.Schema.Enum) == 0; p.In == "query" && !text &&
			query.Has(p.Name) && query.Get(p.Name) == "" {
			write(w, fleetapi.NewProblem(fleetapi.ProblemInvalid, "query: "+p.Name+" has no value: leave it out"))
			return
		}
		values := r.Header.Values(p.Name)
		if p.In == "header" && (len(values) > 1 || len(values) == 1 && values[0] == "") {
			write(w, fleetapi.NewProblem(fleetapi.ProblemInvalid,
				p.Name+": allowed is one header with a value; to do without it, leave the header out"))
			return
		}
	}
	for name, values := range query {
		if len(values) > 1 {
			write(w, fleetapi.NewProblem(fleetapi.ProblemInvalid,
				fmt.Sprintf("query: %.60q is given %d times", name, len(values))))
			return
		}
	}
	if r.Body != nil && r.Body != http.NoBody && r.Method != http.MethodGet {
		data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		switch at := nullIn(data); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close") // else the server would wait for the rest
			write(w, &fleetapi.Problem{Type: fleetapi.ProblemInvalid, Status: http.StatusRequestTimeout,
				Title: http.StatusText(http.StatusRequestTimeout), Detail: "the body came too slowly"})
			return
		case err == nil && at >= 0 && len(data) <= maxBody:
			write(w, fleetapi.NewProblem(fleetapi.ProblemInvalid,
				fmt.Sprintf("body: null at byte %d is no value: leave the field out", at)))
			return
		}
		rest := r.Body // what is left of a body that is too large, or the error
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), rest), rest}
	}
	next(ctx)
}

// nullIn returns where a JSON text has null as a value; -1: nowhere, or it is no JSON.
func nullIn(data []byte) int64 {
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.Token()
		if err != nil {
			return -1
		}
		if token == nil {
			return d.InputOffset()
		}
	}
}
