package etcd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/numavisor/numavisor/internal/server/store"
)

// packFrom is the size of values from which etcd gets them compressed: the database, whose pages are in memory while
// they are used, has half the size then. Reports of hosts shrink to a seventh, records of VMs to a half.
const packFrom = 256

// packed is how a compressed value begins. JSON never begins so, and any other value that does
// is compressed, whatever its size.
const packed = "\x1f\x8b"

// packer compresses values, and unpacks them. Each writer and reader takes tens of KiB.
type packer struct {
	writers sync.Pool // of *gzip.Writer
	readers sync.Pool // of *gzip.Reader
}

func (p *packer) pack(value []byte) (string, error) {
	must := bytes.HasPrefix(value, []byte(packed))
	if len(value) < packFrom && !must {
		return string(value), nil
	}
	var b bytes.Buffer
	b.Grow(len(value) / 2)
	w, ok := p.writers.Get().(*gzip.Writer)
	if !ok {
		w, _ = gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is valid
	}
	w.Reset(&b)
	_, err := w.Write(value)
	if err == nil {
		err = w.Close()
	}
	p.writers.Put(w)
	if err == nil && b.Len() >= len(value) && !must {
		return string(value), nil
	}
	return b.String(), err
}

func (p *packer) unpack(value []byte) ([]byte, error) {
	if !bytes.HasPrefix(value, []byte(packed)) {
		return value, nil
	}
	r, ok := p.readers.Get().(*gzip.Reader)
	if !ok {
		r = &gzip.Reader{}
	}
	defer p.readers.Put(r)
	if err := r.Reset(bytes.NewReader(value)); err != nil {
		return nil, err
	}
	// The last four bytes are the size, unless the value is damaged.
	size := binary.LittleEndian.Uint32(value[len(value)-4:])
	out := bytes.NewBuffer(make([]byte, 0, min(int(size), store.MaxSize)+bytes.MinRead))
	_, err := out.ReadFrom(io.LimitReader(r, store.MaxSize))
	return out.Bytes(), err
}

// record is a record as etcd has it.
func (p *packer) record(kv *mvccpb.KeyValue) (store.Record, error) {
	value, err := p.unpack(kv.Value)
	if err != nil {
		err = fmt.Errorf("record %s, revision %d: %w", kv.Key, kv.ModRevision, err)
	}
	return store.Record{Key: string(kv.Key), Value: value, Revision: kv.ModRevision}, err
}
