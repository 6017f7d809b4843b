package fleetapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// maxEvent limits an event, which has at most one VM with its placement.
const maxEvent = 8 << 20

// readEvents reads server-sent events until the stream ends or yield stops it.
func readEvents(r io.Reader, yield func(Event, error) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
			continue
		}
		if len(line) > 0 || len(data) == 0 {
			continue // a comment, a field that is not used, or a pause between events
		}
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("an event of the server cannot be decoded: %w", err)
		}
		data = data[:0]
		if !yield(e, nil) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	return nil
}
