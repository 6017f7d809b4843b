package libvirt

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLargeInputIsReadInTime: the largest documents allowed, made to be slow.
func TestLargeInputIsReadInTime(t *testing.T) {
	fill := func(before, part, after string) string {
		return before + strings.Repeat(part, (maxXMLBytes-len(before)-len(after))/len(part)) + after
	}
	for name, xml := range map[string]string{
		"siblings":   fill("<domain>", "<a/>", "</domain>"),
		"split text": fill("<domain>", "x<!---->", "</domain>"),
		"attributes": fill("<domain ", "a='' ", "/>"),
		"pins": fill("<domain><memory>4</memory><vcpu>16000</vcpu><cputune>", "<vcpupin vcpu='15999' "+
			"cpuset='0-16383'/>", "</cputune></domain>"),
		"a long list": fill("<domain><vcpu cpuset='", "0-16383,", "1'>16000</vcpu></domain>"),
		"many lists": fill("<domain><vcpu>16000</vcpu><numatune>", "<memnode cellid='1' "+
			"nodeset='0-16383'/>", "</numatune></domain>"),
		"many cells": fill("<domain><vcpu>16000</vcpu><cpu><numa>", "<cell memory='1' cpus='0'/>",
			"</numa></cpu></domain>"),
		"devices": fill("<domain><devices>", "<memory><target><size>0</size><node>1</node></target></memory>",
			"</devices></domain>"),
		"metadata": fill("<domain><metadata>", "<x:a xmlns:x='"+MetadataURI+"'/>", "</metadata></domain>"),
		"deep prefix": fill("<domain><metadata>", strings.Repeat("<a>", 50)+strings.Repeat("</a>", 50),
			"</metadata></domain>"),
		"I/O threads": fill("<domain><iothreadids>", "<iothread id='7'/>", "</iothreadids></domain>"),
		"spaces":      fill("<domain>", " ", "</domain>"),
	} {
		start := cpuTime(t)
		d, err := ParseDomain([]byte(xml))
		if err == nil && d.BootMemory > 0 {
			_, err = Rewrite([]byte(xml), small(d), Metadata{})
		}
		took := cpuTime(t) - start
		t.Logf("%-12s %8v %.80v", name, took.Round(time.Millisecond), err)
		if took > 8*time.Second { // under a second each on an idle machine
			t.Errorf("%s: took %v of CPU time", name, took)
		}
	}
}

// cpuTime is what this process has used of CPUs: other work on the machine does not count.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
