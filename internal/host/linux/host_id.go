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

// HostID returns an id that distinguishes this host from others and survives
// restarts and changes of its name: /etc/machine-id, else the firmware's UUID
// (/sys/class/dmi/id/product_uuid, which only root may read). It is hashed
// because a machine-id is confidential (machine-id(5)). An empty id without an
// error means that the host has neither.
//
// Hosts that were cloned with their machine-id share one id, as for all other
// software that uses it.
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

// BootID returns an id that changes when the host boots: /proc/sys/kernel/random/boot_id (random(4)).
func (r Root) BootID() (string, error) {
	id, err := r.word("proc", "sys", "kernel", "random", "boot_id")
	if err != nil {
		return "", fmt.Errorf("reading which boot of the host this is: %w", err)
	}
	return id, nil
}

// isUUID reports whether a text is 32 hexadecimal digits, not all alike: the
// machine-id of an image reads "uninitialized", and a UUID that firmware never
// set is all zeros.
func isUUID(id string) bool {
	_, err := hex.DecodeString(id)
	return err == nil && len(id) == 32 && strings.Trim(id, id[:1]) != ""
}
