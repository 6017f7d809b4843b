package etcd

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/numavisor/numavisor/internal/server/store"
)

// packFrom is the size of values from which etcd gets them compressed: reports of hosts, which are
// most of a fleet's records and shrink to a twentieth.
const packFrom = 4096

// packed is how a compressed value begins. JSON never begins so, and any other value that does
// is compressed, whatever its size.
const packed = "\x1f\x8b"

// packer compresses values.
type packer struct{ writers sync.Pool } // of *gzip.Writer

func (p *packer) pack(value []byte) (string, error) {
	if len(value) < packFrom && !bytes.HasPrefix(value, []byte(packed)) {
		return string(value), nil
	}
	var b bytes.Buffer
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
	return b.String(), err
}

func unpack(value []byte) ([]byte, error) {
	if !bytes.HasPrefix(value, []byte(packed)) {
		return value, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(value))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, store.MaxSize))
}

// record is a record as etcd has it.
func record(kv *mvccpb.KeyValue) (store.Record, error) {
	value, err := unpack(kv.Value)
	if err != nil {
		err = fmt.Errorf("record %s, revision %d: %w", kv.Key, kv.ModRevision, err)
	}
	return store.Record{Key: string(kv.Key), Value: value, Revision: kv.ModRevision}, err
}
