package guest

import (
	"errors"
	"io"

	"github.com/numavisor/numavisor/internal/strictyaml"
)

var specFormat = strictyaml.Format{Kind: "spec", MaxBytes: 1 << 20}

// SpecFile is a spec and where its fields are in the file.
type SpecFile struct {
	Spec Spec
	doc  *strictyaml.Document
}

// ParseSpec reads a spec in YAML or JSON (docs/spec.md), strictly. It returns
// the faults of the file as one *strictyaml.Error. It neither checks values
// against each other nor fills in defaults: see Normalize.
func ParseSpec(r io.Reader) (SpecFile, error) {
	var f SpecFile
	var err error
	if f.doc, err = strictyaml.Decode(r, specFormat, &f.Spec, nil); err != nil {
		return SpecFile{}, err
	}
	if f.doc.IsEmpty() {
		return SpecFile{}, f.doc.Locate(
			errors.New("is empty; at least vcpus and memory are needed, for example 'vcpus: 8' and 'memory: 16G'"))
	}
	return f, nil
}

// Locate gives an error of Normalize its lines and columns in the file. It
// returns an *strictyaml.Error if the file alone has that error. Other errors
// follow from changes that were made since the file was read, and stay as they are.
func (f SpecFile) Locate(err error) error {
	if _, own := f.Spec.Normalize(); err == nil || own == nil || own.Error() != err.Error() {
		return err
	}
	return f.doc.Locate(err)
}
