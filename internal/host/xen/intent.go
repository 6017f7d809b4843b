package xen

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
)

// Intents are in xenstore, below a folder that only the control domain reads: an intent by the
// UUID of its guest, which a migration does not change. xenstore is in memory, as the guests are.
const intentFolder = "/tool/numavisor/guest"

const (
	intentChunk  = 2800 // bytes of a value; a message of xenstore has at most 4096
	maxChunks    = 256
	maxIntent    = 4 << 20 // unpacked
	xenstoreRead = "xenstore-ls"
)

var (
	storedLine = regexp.MustCompile(`^` + intentFolder + `/([0-9a-f-]{36})/(\d{1,3}) = "([0-9A-Za-z+/=:]*)"$`)
	validUUID  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// intents returns the text of all recorded intents, by UUID. One that is damaged has the text of
// its damage, which no decoder accepts.
func (d *Driver) intents(ctx context.Context) (map[string][]byte, error) {
	out, err := d.call(ctx, d.limit, xenstoreRead, "-f", intentFolder)
	var failed *FailedError
	switch {
	case errors.As(err, &failed):
		return nil, nil //nolint:nilnil // the folder does not exist: no intent is recorded
	case err != nil:
		return nil, fmt.Errorf("recorded intents: %w", err)
	}
	return parseIntents(out), nil
}

func parseIntents(out []byte) map[string][]byte {
	parts := map[string]map[int]string{}
	for line := range strings.Lines(string(out)) {
		f := storedLine.FindStringSubmatch(strings.TrimSpace(line))
		if f == nil {
			continue
		}
		if parts[f[1]] == nil {
			parts[f[1]] = map[int]string{}
		}
		parts[f[1]][number(f[2])] = f[3]
	}
	all := make(map[string][]byte, len(parts))
	for uuid, chunks := range parts {
		text, err := unpackIntent(chunks)
		if err != nil {
			text = []byte(err.Error())
		}
		all[uuid] = text
	}
	return all
}

// packIntent returns the values under which an intent is stored. The first begins with their number.
func packIntent(text []byte) ([]string, error) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(text); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	all := base64.StdEncoding.EncodeToString(packed.Bytes())
	var chunks []string
	for len(all) > 0 {
		n := min(intentChunk, len(all))
		chunks, all = append(chunks, all[:n]), all[n:]
	}
	if len(chunks) > maxChunks {
		return nil, fmt.Errorf("the intent has %d bytes, which is too much for xenstore", len(text))
	}
	chunks[0] = strconv.Itoa(len(chunks)) + ":" + chunks[0]
	return chunks, nil
}

func unpackIntent(chunks map[int]string) ([]byte, error) {
	count, first, ok := strings.Cut(chunks[0], ":")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > maxChunks {
		return nil, errors.New("no number of parts")
	}
	var all strings.Builder
	all.WriteString(first)
	for i := 1; i < n; i++ {
		chunk, ok := chunks[i]
		if !ok {
			return nil, fmt.Errorf("part %d of %d is missing", i, n)
		}
		all.WriteString(chunk)
	}
	packed, err := base64.StdEncoding.DecodeString(all.String())
	if err != nil {
		return nil, err
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(zip, maxIntent+1))
	if err == nil && len(text) > maxIntent {
		err = errors.New("it is too long")
	}
	return text, err
}

// Record implements apply.Hypervisor. All parts are written in one transaction.
func (d *Driver) Record(ctx context.Context, name string, i guest.Intent) error {
	_, uuid, err := d.find(ctx, name)
	if err != nil {
		return err
	}
	return d.record(ctx, name, uuid, i)
}

func (d *Driver) record(ctx context.Context, name, uuid string, i guest.Intent) error {
	if !validUUID.MatchString(uuid) {
		return fmt.Errorf("recording the intent of VM %s: UUID %q is not valid", name, uuid)
	}
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	chunks, err := packIntent(text)
	if err != nil {
		return fmt.Errorf("recording the intent of VM %s: %w", name, err)
	}
	var args []string
	for n, chunk := range chunks {
		args = append(args, fmt.Sprintf("%s/%s/%d", intentFolder, uuid, n), chunk)
	}
	if _, err := d.call(ctx, d.limit, "xenstore-write", args...); err != nil {
		return refused(fmt.Errorf("recording the intent of VM %s: %w", name, err))
	}
	return nil
}

// Forget implements apply.Hypervisor.
func (d *Driver) Forget(ctx context.Context, name string) error {
	_, uuid, err := d.find(ctx, name)
	if err != nil {
		return err
	}
	return d.forget(ctx, name, uuid)
}

func (d *Driver) forget(ctx context.Context, name, uuid string) error {
	if !validUUID.MatchString(uuid) {
		return nil
	}
	stored, err := d.intents(ctx)
	if err != nil || stored[uuid] == nil {
		return err
	}
	if _, err := d.call(ctx, d.limit, "xenstore-rm", intentFolder+"/"+uuid); err != nil {
		return refused(fmt.Errorf("removing the intent of VM %s: %w", name, err))
	}
	return nil
}

// decodeIntent reads the text of an intent; the inventory checks it.
func decodeIntent(text []byte) (guest.Intent, error) {
	var i guest.Intent
	err := json.Unmarshal(text, &i)
	return i, err
}
