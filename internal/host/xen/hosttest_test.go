package xen

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestDriver_PassesTheSuite runs against a simulated Xen.
func TestDriver_PassesTheSuite(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Target {
		t.Helper()
		topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
		if err != nil {
			t.Fatal(err)
		}
		d := New(newSimulated(topo).run)
		return suiteTarget(d, topo, "")
	})
}

// TestLabSuite runs against xl and real guests, in dom0 of the lab.
func TestLabSuite(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB_INSIDE") != "1" {
		t.Skip("runs only inside a Xen lab (make lab-one T=TestLabXenDriver): it starts guests with xl")
	}
	d := New(nil)
	topo, err := d.Topology()
	if err != nil {
		t.Fatal(err)
	}
	kernel := filepath.Join(t.TempDir(), "idle.elf")
	if err := os.WriteFile(kernel, idleKernel(), 0o600); err != nil {
		t.Fatal(err)
	}
	hosttest.Run(t, func(*testing.T) hosttest.Target {
		return suiteTarget(d, topo, "kernel = \""+kernel+"\"\n")
	})
}

// idleKernel is a kernel that only waits, as small as the suite's guests: a 32-bit ELF file with one segment of code,
// and the note that names its entry to Xen (XEN_ELFNOTE_PHYS32_ENTRY).
func idleKernel() []byte {
	const (
		load            = 1 << 20 // address at which Xen loads the segment
		header, segment = 52, 32
		note            = header + 2*segment
		code            = note + 20
	)
	wait := []byte{0xfb, 0xf4, 0xeb, 0xfd} // sti; again: hlt; jmp again
	var elf bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if err := binary.Write(&elf, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
	size := uint32(code + len(wait))
	put([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9), uint16(2), uint16(3), uint32(1), uint32(load+code),
		uint32(header), uint32(0), uint32(0), uint16(header), uint16(segment), uint16(2), uint16(0),
		uint16(0), uint16(0))
	// PT_LOAD, then PT_NOTE
	put(uint32(1), uint32(0), uint32(load), uint32(load), size, size, uint32(7), uint32(0x1000))
	put(uint32(4), uint32(note), uint32(load+note), uint32(load+note), uint32(20), uint32(20), uint32(4), uint32(4))
	put(uint32(4), uint32(4), uint32(18), []byte("Xen\x00"), uint32(load+code), wait)
	return elf.Bytes()
}

// suiteTarget is a driver as the suite takes it; boot are the lines of a configuration that make a
// real guest boot.
func suiteTarget(d *Driver, topo topology.Topology, boot string) hosttest.Target {
	return hosttest.Target{
		Hypervisor: d, Topology: topo,
		Render: func(s guest.Spec, p guest.Placement) (guest.Definition, error) {
			if strings.ContainsAny(s.Name, "\"\\\n") {
				return guest.Definition{}, errors.New("the name cannot be written into an xl configuration")
			}
			text := fmt.Sprintf("name = \"%s\"\ntype = \"pvh\"\nmemory = %d\nvcpus = %d\n%s", s.Name, s.Memory>>20,
				s.VCPUs, boot)
			c, err := ParseConfig([]byte(text))
			if err != nil {
				return guest.Definition{}, err
			}
			return guest.Definition{Name: s.Name, Text: c.Rewrite(&p), Intent: &guest.Intent{Spec: s, Placement: p}}, nil
		},
		PowerOff: d.PowerOff,
		Garble: func(ctx context.Context, name string) error {
			_, uuid, err := d.find(ctx, name)
			if err != nil {
				return err
			}
			_, err = d.call(ctx, CallTime, "xenstore-write", intentFolder+"/"+uuid+"/0", "1:bm90IGFuIGludGVudA==")
			return err
		},
		Lacks: []hosttest.Function{hosttest.StoreConfiguration, hosttest.PinHelpers, hosttest.BindMemory,
			hosttest.RetuneRunning, hosttest.PinStoredHelpers},
	}
}
