// Package process starts and ends the processes of a simulated fleet, and reads what they use from /proc.
package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Program is a process that can be started again after each end. It ends with this process.
type Program struct {
	Name string
	Args []string // the path of the program first
	Log  string   // the file for its output
	run  *exec.Cmd
}

// Start starts the program.
func (p *Program) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.run = exec.CommandContext(context.Background(), p.Args[0], p.Args[1:]...)
	p.run.Stdout, p.run.Stderr = log, log
	p.run.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return p.run.Start()
}

// PID returns the process's ID; 0: it does not run.
func (p *Program) PID() int {
	if p.run == nil {
		return 0
	}
	return p.run.Process.Pid
}

// Kill is kill -9.
func (p *Program) Kill() {
	if p.run == nil {
		return
	}
	_ = p.run.Process.Kill() // it may have ended
	_ = p.run.Wait()
	p.run = nil
}

// Quit ends the program as systemd does: by SIGTERM, and after a time by SIGKILL.
func (p *Program) Quit() {
	p.Signal(unix.SIGTERM)
	for range 200 {
		if p.run == nil || zombie(p.run.Process.Pid) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.Kill()
}

// Runs reports whether the process has not ended.
func (p *Program) Runs() bool {
	return p.run != nil && unix.Kill(p.run.Process.Pid, 0) == nil && !zombie(p.run.Process.Pid)
}

// Alive restarts a program that has ended by itself, as systemd does.
func (p *Program) Alive() error {
	if p.Runs() {
		return nil
	}
	p.Kill()
	return p.Start()
}

// Signal sends a signal, unless the process has ended.
func (p *Program) Signal(s unix.Signal) {
	if p.run != nil {
		_ = p.run.Process.Signal(s) // it may have ended
	}
}

func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(text, ')')
	return err != nil || i+2 >= len(text) || text[i+2] == 'Z'
}
