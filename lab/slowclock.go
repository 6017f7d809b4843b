package lab

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed slowclock/slowclock.c
var slowClockSource []byte

// maxSlowdown is the greatest factor. The lab's kernel has 32 bits for the rate of the processor's counter, in kHz,
// times the factor.
const maxSlowdown = 100

// environment returns the variables with which QEMU loads libraries first, and has slow clocks.
func environment(ctx context.Context, s Shape, preload []string) ([]string, error) {
	var env []string
	if s.Slowdown > 1 {
		library, err := compileOnce(ctx, "slowclock", slowClockSource, "-shared", "-fPIC")
		if err != nil {
			return nil, fmt.Errorf("the lab's slow clock: %w", err)
		}
		preload = append(preload, library)
		env = append(env, "SLOWCLOCK="+strconv.Itoa(s.Slowdown))
	}
	for _, library := range preload {
		if strings.ContainsAny(library, " :") {
			return nil, fmt.Errorf("%s cannot be loaded first by QEMU: spaces and colons end a name in LD_PRELOAD; set "+
				"XDG_CACHE_HOME to a folder without them", library)
		}
	}
	if len(preload) > 0 {
		env = append(env, "LD_PRELOAD="+strings.Join(preload, ":"))
	}
	return env, nil
}
