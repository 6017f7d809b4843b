package guest_test

import (
	"bytes"
	"testing"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// FuzzDecodeReport: whatever a guest sends is refused, or is a report within all
// limits that is sent and read again without a change.
func FuzzDecodeReport(f *testing.F) {
	line, err := guest.Encode(ptr(report()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line[:len(line)-1])
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := guest.DecodeReport(data)
		if err != nil {
			return
		}
		if !r.Used.Has(0) || r.Used.Without(r.Present).Len() > 0 || r.Running < 0 || r.Waiting < 0 || len(data) >= guest.MaxMessage {
			t.Fatalf("accepted: %+v", r)
		}
		again, err := guest.Encode(&r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := guest.DecodeReport(bytes.TrimSuffix(again, []byte("\n"))); err != nil || back != r {
			t.Fatalf("%+v, %v; was %+v", back, err, r)
		}
	})
}

// FuzzDecodeGrant is the same for the agent's side.
func FuzzDecodeGrant(f *testing.F) {
	f.Add([]byte(`{"v":1,"epoch":5,"vcpus":"3"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := guest.DecodeGrant(data)
		if err != nil {
			return
		}
		again, err := guest.Encode(&g)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := guest.DecodeGrant(bytes.TrimSuffix(again, []byte("\n"))); err != nil || back != g {
			t.Fatalf("%+v, %v; was %+v", back, err, g)
		}
	})
}

// FuzzLines: no stream makes a line longer than a message, or holds more memory.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb"), 1)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		piece = 1 + max(0, piece%4096)
		var lines guest.Lines
		for len(data) > 0 {
			n := min(piece, len(data))
			lines.Add(data[:n], func(line []byte) {
				if len(line) == 0 || len(line) >= guest.MaxMessage || bytes.ContainsRune(line, '\n') {
					t.Fatalf("a line of %d bytes", len(line))
				}
			})
			data = data[n:]
		}
	})
}
