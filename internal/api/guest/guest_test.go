package guest_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/api/guest"
)

func full() guest.VCPUs {
	var s guest.VCPUs
	for id := range guest.MaxVCPUs {
		s.Add(id)
	}
	return s
}

func report() guest.Report {
	return guest.Report{
		V: guest.Version, Seq: 7, Boot: "0123abcd", Epoch: 3, Present: guest.Of(0, 1, 2, 3), Used: guest.Of(0, 2),
		Means: guest.Partition, Running: 1500, Waiting: 250, Stalled: 10, Use: "9050",
	}
}

func TestMessagesComeBackAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.IntRange(0, guest.MaxVCPUs-1)).Draw(t, "vcpus")
		set := guest.Of(append(ids, 0)...)
		g := guest.Grant{V: guest.Version, Epoch: rapid.Uint64Range(1, guest.MaxEpoch).Draw(t, "epoch"), VCPUs: set}
		line, err := guest.Encode(&g)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := guest.DecodeGrant(bytes.TrimSuffix(line, []byte("\n"))); err != nil || back != g {
			t.Fatalf("%s: %+v, %v", line, back, err)
		}
		r := report()
		r.Epoch, r.Used, r.Present = g.Epoch, set, set.Or(guest.Of(5))
		if line, err = guest.Encode(&r); err != nil {
			t.Fatal(err)
		}
		if back, err := guest.DecodeReport(bytes.TrimSuffix(line, []byte("\n"))); err != nil || back != r {
			t.Fatalf("%s: %+v, %v", line, back, err)
		}
		if list, err := guest.ParseList(set.String()); err != nil || list != set {
			t.Fatalf("%v: %v, %v", set, list, err)
		}
	})
}

// The limits of MaxMessage hold for the longest report, and a usual one has a few
// hundred bytes.
func TestMessagesAreShort(t *testing.T) {
	r := report()
	r.Present, r.Used = full(), full()
	r.Seq, r.Epoch, r.Running, r.Waiting = guest.MaxEpoch, guest.MaxEpoch, 4194304000, 4194304000
	r.Use, r.Means = strings.Repeat("9", guest.MaxUse), guest.Partition
	if _, err := guest.Encode(&r); err != nil {
		t.Error(err)
	}
	usual := report()
	usual.Epoch, usual.Use = 1_800_000_000_000_000, strings.Repeat("5", 64)
	if line, err := guest.Encode(&usual); err != nil || len(line) > 256 {
		t.Errorf("%d bytes, %v: %s", len(line), err, line)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good, err := guest.Encode(ptr(report()))
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(string(good))
	for name, bad := range map[string]string{
		"empty":          "",
		"not JSON":       "hello",
		"two messages":   line + line,
		"unknown field":  strings.Replace(line, `"v":1`, `"v":1,"x":1`, 1),
		"no vCPU 0":      strings.Replace(line, `"used":"5"`, `"used":"4"`, 1),
		"not present":    strings.Replace(line, `"used":"5"`, `"used":"15"`, 1),
		"negative":       strings.Replace(line, `"running":1500`, `"running":-1`, 1),
		"unknown means":  strings.Replace(line, `"partition"`, `"prayer"`, 1),
		"boot":           strings.Replace(line, `0123abcd`, `0123abcg`, 1),
		"use":            strings.Replace(line, `"9050"`, `"90x0"`, 1),
		"great epoch":    strings.Replace(line, `"epoch":3`, `"epoch":9007199254740992`, 1),
		"too great mask": strings.Replace(line, `"5"`, `"`+strings.Repeat("f", 257)+`"`, 1),
		"too long":       line + strings.Repeat(" ", guest.MaxMessage),
	} {
		if bad == line {
			t.Fatalf("%s: nothing was changed in %s", name, line)
		}
		if r, err := guest.DecodeReport([]byte(bad)); err == nil {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
	if _, err := guest.DecodeReport([]byte(`{"v":2,"novelty":[]}`)); !errors.Is(err, guest.ErrVersion) {
		t.Errorf("a message of version 2: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

// However a stream is cut, the same lines come out; and noise costs at most the
// line that it is in.
func TestLinesInAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		noise := rapid.SampledFrom([]string{"", "x", strings.Repeat("y", 5000)}).Draw(t, "noise")
		stream := []byte(noise + "\nfirst\n\nsecond\n")
		var lines guest.Lines
		var got []string
		for len(stream) > 0 {
			n := rapid.IntRange(1, min(len(stream), 2000)).Draw(t, "piece")
			lines.Add(stream[:n], func(line []byte) { got = append(got, string(line)) })
			stream = stream[n:]
		}
		want := []string{"first", "second"}
		if noise == "x" {
			want = append([]string{"x"}, want...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}
