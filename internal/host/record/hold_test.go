package record

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/journal"

	"go.uber.org/goleak"
)

// One daemon a folder: the error of the second names the first and the remedy,
// and other processes can still write the journal.
func TestHold_OneDaemonPerFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made", "for it")
	held, err := Hold(folder)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Hold(folder)
	if !errors.Is(err, ErrHeld) {
		t.Fatalf("held twice: %v", err)
	}
	for _, want := range []string{fmt.Sprintf("process %d ", os.Getpid()), folder, "--records"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	mustAppend(t, Journal{Folder: folder}, entry(0, journal.Started, ""))
	other, err := Hold(t.TempDir())
	if err != nil {
		t.Errorf("another folder: %v", err)
	} else {
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Hold(folder)
	if err != nil {
		t.Fatalf("the folder was released, but is still in use: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// holderFolder is the environment variable that makes the test's program hold a
// folder, and say so, until it is killed.
const holderFolder = "NUMAVISOR_TEST_HOLDS"

func TestMain(m *testing.M) {
	if folder := os.Getenv(holderFolder); folder != "" {
		if _, err := Hold(folder); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		select {}
	}
	goleak.VerifyTestMain(m)
}

func TestHold_EndsWithTheProcess(t *testing.T) {
	folder := t.TempDir()
	for range 2 {
		daemon := exec.Command("/proc/self/exe")
		daemon.Env = append(os.Environ(), holderFolder+"="+folder)
		out, err := daemon.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		var said string
		if _, err := fmt.Fscanln(out, &said); err != nil || said != "held" {
			t.Errorf("its output is %q: %v", said, err)
		}
		if _, err := Hold(folder); !errors.Is(err, ErrHeld) ||
			!strings.Contains(err.Error(), fmt.Sprintf("process %d ", daemon.Process.Pid)) {
			t.Errorf("while it runs: %v", err)
		}
		if err := daemon.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := daemon.Wait(); err == nil {
			t.Error("it was not killed")
		}
	}
	held, err := Hold(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
}
