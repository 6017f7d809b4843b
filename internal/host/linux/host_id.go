package linux

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// HostID returns an id that tells this host from others and survives restarts
// and changes of its name: /etc/machine-id, else the UUID that firmware gives
// (/sys/class/dmi/id/product_uuid, which only root may read). It is hashed: a
// machine-id is confidential (machine-id(5)). Empty without an error: the host
// has neither.
//
// Hosts that were cloned with their machine-id have one id, as for all else
// that goes by it.
func (r Root) HostID() (string, error) {
	for _, file := range [][]string{{"etc", "machine-id"}, {"sys", "class", "dmi", "id", "product_uuid"}} {
		text, err := r.word(file...)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("reading the host's id: %w", err)
		}
		if id := strings.ToLower(strings.ReplaceAll(text, "-", "")); isUUID(id) {
			sum := hmac.New(sha256.New, []byte(id))
			sum.Write([]byte("https://numavisor.dev host id")) // never fails
			return hex.EncodeToString(sum.Sum(nil)[:16]), nil
		}
	}
	return "", nil
}

// isUUID reports whether a text is 32 hexadecimal digits, not all alike:
// "uninitialized" stands in the machine-id of an image, zeros where nobody set a UUID.
func isUUID(id string) bool {
	_, err := hex.DecodeString(id)
	return err == nil && len(id) == 32 && strings.Trim(id, id[:1]) != ""
}
