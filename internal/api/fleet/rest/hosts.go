package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// OnHost names a host in the path.
type OnHost struct {
	Host string `path:"host" maxLength:"240"`
}

type noInput struct{}

func (r *routes) hosts() { //nolint:funlen // a table of operations
	s := r.service
	add(r, "info", func(context.Context, Call, *noInput) (*Plain[fleetapi.ServerInfo], error) {
		return plain(s.Info(), nil)
	})
	add(r, "list-hosts", func(ctx context.Context, c Call, in *struct{ Paging }) (*Plain[fleetapi.Hosts], error) {
		return plain(s.Hosts(ctx, c, in.page()))
	})
	host := func(h fleetapi.Host, err error) (*Tagged[fleetapi.Host], error) { return tagged(h, h.Revision, err) }
	add(r, "get-host", func(ctx context.Context, c Call, in *OnHost) (*Tagged[fleetapi.Host], error) {
		return host(s.Host(ctx, c, in.Host))
	})
	add(r, "list-nodes", func(ctx context.Context, c Call, in *OnHost) (*Plain[fleetapi.Nodes], error) {
		return plain(s.Nodes(ctx, c, in.Host))
	})
	add(r, "get-inventory", func(ctx context.Context, c Call, in *OnHost) (*huma.StreamResponse, error) {
		h, err := s.Inventory(ctx, c, in.Host)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			ctx.SetHeader("Content-Type", "application/json")
			_ = json.NewEncoder(ctx.BodyWriter()).Encode(h) // it fails only if the client has closed the connection
		}}, nil
	})
	add(r, "edit-host", func(ctx context.Context, c Call, in *struct {
		OnHost
		Precondition
		Body fleetapi.HostEdit
	},
	) (*Tagged[fleetapi.Host], error) {
		return host(s.EditHost(ctx, c, in.Host, in.Body))
	})
	for id, do := range map[string]func(context.Context, Call, string) (fleetapi.Host, error){
		"cordon-host": s.Cordon, "uncordon-host": s.Uncordon, "declare-alive": s.DeclareAlive,
	} {
		add(r, id, func(ctx context.Context, c Call, in *struct {
			OnHost
			Precondition
		},
		) (*Tagged[fleetapi.Host], error) {
			return host(do(ctx, c, in.Host))
		})
	}
	add(r, "drain-host", func(ctx context.Context, c Call, in *struct {
		OnHost
		Precondition
		Body *fleetapi.HostDrain `required:"false"`
	},
	) (*Tagged[fleetapi.Host], error) {
		how := fleetapi.HostDrain{}
		if in.Body != nil {
			how = *in.Body
		}
		return host(s.Drain(ctx, c, in.Host, how))
	})
	add(r, "declare-dead", func(ctx context.Context, c Call, in *struct {
		OnHost
		Precondition
		Body *fleetapi.Reason `required:"false"`
	},
	) (*Tagged[fleetapi.Host], error) {
		why := ""
		if in.Body != nil {
			why = in.Body.Why
		}
		return host(s.DeclareDead(ctx, c, in.Host, why))
	})
	add(r, "remove-host", func(ctx context.Context, c Call, in *struct {
		OnHost
		Precondition
	},
	) (*Empty, error) {
		return empty(s.RemoveHost(ctx, c, in.Host))
	})
	add(r, "create-join", func(ctx context.Context, c Call, in *struct{ Body fleetapi.JoinCreate },
	) (*Plain[fleetapi.NewJoin], error) {
		return plain(s.CreateJoin(ctx, c, in.Body))
	})
	add(r, "list-alarms", func(ctx context.Context, c Call, _ *noInput) (*Plain[fleetapi.Alarms], error) {
		return plain(s.Alarms(ctx, c))
	})
	add(r, "watch-events", func(ctx context.Context, c Call, _ *noInput) (*huma.StreamResponse, error) {
		events, err := s.Events(ctx, c)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) { sendEvents(ctx, events) }}, nil
	})
	op := r.api.OpenAPI().Paths["/v1/events"].Get
	op.Responses["200"] = &huma.Response{Description: "a stream of server-sent events; the schema is that of each one",
		Content: map[string]*huma.MediaType{"text/event-stream": {Schema: r.eventSchema()}}}
	op = r.api.OpenAPI().Paths["/v1/hosts/{host}/inventory"].Get
	op.Responses["200"] = &huma.Response{Description: "the inventory, described by docs/inventory.schema.json",
		Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Type: huma.TypeObject}}}}
}

// eventSchema describes one server-sent event.
func (r *routes) eventSchema() *huma.Schema {
	content := r.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fleetapi.Event](), true, "Event")
	return &huma.Schema{Type: huma.TypeObject, Required: []string{"id", "data"}, Properties: map[string]*huma.Schema{
		"id": {Type: huma.TypeString, Description: "the revision"},
		"data": {Type: huma.TypeString, Extensions: map[string]any{"contentMediaType": "application/json",
			"contentSchema": content}},
	}}
}

const (
	// heartbeat is how often an idle stream of events has a comment, so that a half-open
	// connection is found.
	heartbeat = 15 * time.Second
	// sendTime limits the sending of one event.
	sendTime = 10 * time.Second
)

// sendEvents writes server-sent events until the channel is closed or the client is gone.
func sendEvents(ctx huma.Context, events <-chan fleetapi.Event) {
	_, w := humago.Unwrap(ctx)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	text := ": events of the fleet\n\n"
	for {
		_ = out.SetWriteDeadline(time.Now().Add(sendTime)) // not all connections can: then the client's end counts
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return
		}
		_ = out.SetWriteDeadline(time.Time{}) // else it ends the stream between two events
		select {
		case e, more := <-events:
			if !more {
				return
			}
			data, err := json.Marshal(e)
			if err != nil {
				return
			}
			text = fmt.Sprintf("id: %d\ndata: %s\n\n", e.Revision, data)
		case <-beat.C:
			text = ":\n\n"
		case <-ctx.Context().Done():
			return
		}
	}
}
