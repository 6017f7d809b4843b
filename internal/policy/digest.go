package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Digest identifies what a policy decides: policies with the same fields have
// the same digest, whatever file they were read from, and a field that is not
// set counts as its default. It is empty for a policy that JSON cannot hold,
// which Validate refuses.
func (p Policy) Digest() string {
	text, err := json.Marshal(p.WithDefaults())
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
