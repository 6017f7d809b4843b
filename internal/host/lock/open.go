package lock

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a file for reading and returns its size. It refuses what is
// no regular file: opening a FIFO would wait for its writer.
func OpenRegular(path string) (file *os.File, size int64, err error) {
	file, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%s); remove it", path, info.Mode().Type())
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}
