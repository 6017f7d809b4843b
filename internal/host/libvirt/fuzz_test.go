package libvirt

import (
	"bytes"
	"encoding/xml"
	"io"
	"testing"
)

// FuzzParseDomain: for any bytes, a domain or an error, no panic; and the
// result stays within bounds.
func FuzzParseDomain(f *testing.F) {
	for _, text := range fixtures(f) {
		f.Add(text)
	}
	f.Add([]byte("<domain><vcpu cpuset='^'>3</vcpu><cpu><numa><cell/></numa></cpu></domain>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := ParseDomain(text)
		if err != nil {
			return
		}
		c := d.Config
		if c.VCPUs < 1 || c.VCPUs > maxVCPUs || len(c.Pins) > c.VCPUs || d.BootMemory > c.Memory {
			t.Errorf("out of bounds: %+v", c)
		}
	})
}

// FuzzRewrite: a placement made for the guest of the XML is refused, or bound so
// that the XML is well-formed, reads back as bound, and does not change when it is
// rewritten again.
func FuzzRewrite(f *testing.F) {
	for _, text := range fixtures(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := ParseDomain(text)
		if err != nil || d.Config.VCPUs > 64 {
			return
		}
		p := small(d)
		bound, err := Rewrite(text, p, Metadata{})
		if err != nil {
			return
		}
		for dec := xml.NewDecoder(bytes.NewReader(bound)); ; {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				if wellFormed(text) {
					t.Fatalf("%v\nfrom %q\nto %q", err, text, bound)
				}
				return
			}
		}
		again, err := Rewrite(bound, p, Metadata{})
		if err != nil || !bytes.Equal(bound, again) {
			t.Fatalf("second time: %v\nfrom  %q\nonce  %q\ntwice %q", err, text, bound, again)
		}
		after := mustParse(t, bound)
		if after.Intent == nil || after.Config.NUMATune == nil || !after.Config.NUMATune.Nodes.Equal(p.Nodes) {
			t.Fatalf("not bound: %+v\nfrom %q\nto %q", after.Config, text, bound)
		}
		for _, v := range p.VCPUs {
			if !after.Config.Pins[v.ID].Equal(v.CPUs) {
				t.Fatalf("vCPU %d: %v\nfrom %q\nto %q", v.ID, after.Config.Pins, text, bound)
			}
		}
	})
}

// wellFormed checks a text by encoding/xml, which is stricter than parse (prefixes
// that differ between start and end tag).
func wellFormed(text []byte) bool {
	for dec := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := dec.Token(); err == io.EOF {
			return true
		} else if err != nil {
			return false
		}
	}
}
