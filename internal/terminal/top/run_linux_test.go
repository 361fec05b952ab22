// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"

	"github.com/gpupilot/gpupilot/internal/serve/webui"
)

// terminal is a pseudo-terminal. Everything that is written to it is kept.
type terminal struct {
	user, program *os.File

	mu  sync.Mutex
	out bytes.Buffer
	new chan struct{} // written to after each read
}

func newTerminal(t testing.TB, width, height uint16) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	}
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	x := &terminal{user: user, program: program, new: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(x.read)
	t.Cleanup(func() { _ = program.Close(); _ = user.Close(); reading.Wait() })
	return x
}

func (x *terminal) read() {
	b := make([]byte, 4096)
	for {
		n, err := x.user.Read(b)
		x.mu.Lock()
		x.out.Write(b[:n])
		x.mu.Unlock()
		select {
		case x.new <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// drain returns what was written until now, and forgets it.
func (x *terminal) drain() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.out.String()
	x.out.Reset()
	return s
}

// await waits until what was written since the last drain has a text.
func (x *terminal) await(t testing.TB, want string) {
	t.Helper()
	x.awaitThat(t, want, func(got string) bool { return strings.Contains(ansi.Strip(got), want) })
}

func (x *terminal) awaitThat(t testing.TB, want string, ok func(string) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		x.mu.Lock()
		got := x.out.String()
		x.mu.Unlock()
		if ok(got) {
			return
		}
		select {
		case <-x.new:
		case <-deadline:
			t.Fatalf("no %q on the terminal: %q", want, got)
		}
	}
}

// The program on a terminal: the first frame, keys, what is sent for a frame in which little
// changes, and the end, which restores the screen.
func TestOnATerminal(t *testing.T) {
	x := newTerminal(t, 80, 24)
	a := serve(fleet())
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		done <- Run(t.Context(), Config{Source: &Controller{API: a, Name: "prod.example"}}, x.program, x.program)
	}()
	x.await(t, "24 GPUs on 3 nodes")
	t.Logf("first frame after %s", time.Since(began).Round(time.Millisecond))
	press := func(keys string) {
		t.Helper()
		x.drain()
		if _, err := io.WriteString(x.user, keys); err != nil {
			t.Fatal(err)
		}
	}
	press("3")
	x.await(t, "idle-held")
	press("/notebook\r")
	x.await(t, "3 of 24")
	press("\x1b")
	x.await(t, "active")
	press("p")
	x.await(t, "PAUSED")
	press("p")
	x.drain()
	press("q")
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("q does not end the program")
	}
	x.awaitThat(t, "end of the alternate screen", func(got string) bool { return strings.Contains(got, ansi.ResetModeAltScreenSaveCursor) })
}

// BenchmarkProcess starts the program on a terminal of 200×60, with a page of 80,000 GPUs, and measures the time to the
// first frame and then the CPU time of ten seconds with a read each second.
func BenchmarkProcess(b *testing.B) {
	program := filepath.Join(b.TempDir(), "gpupilot")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", program, "../../../cmd/gpupilot").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	page := httptest.NewServer(webui.New(fixed{asked(10_000)}, nil).Handler())
	defer page.Close()
	for _, name := range []Name{Pools, Nodes, GPUs, Workloads, Waste} {
		b.Run(string(name), func(b *testing.B) {
			var first, busy, whole time.Duration
			for b.Loop() {
				x := newTerminal(b, 200, 60)
				cmd := exec.CommandContext(b.Context(), program, "top", "--controller", page.URL, "--view", string(name))
				cmd.Stdin, cmd.Stdout, cmd.Stderr = x.program, x.program, x.program
				cmd.Env = append(os.Environ(), "TERM=xterm-256color", "KUBECONFIG=/nonexistent", "XDG_CONFIG_HOME="+b.TempDir())
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				began := time.Now()
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				x.await(b, "80,000 GPUs on 10,000 nodes")
				first += time.Since(began)
				started, at := cpuOf(b, cmd.Process.Pid), time.Now()
				select {
				case <-time.After(10 * time.Second):
				case <-b.Context().Done():
				}
				busy, whole = busy+cpuOf(b, cmd.Process.Pid)-started, whole+time.Since(at)
				if _, err := io.WriteString(x.user, "q"); err != nil {
					b.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(first.Milliseconds())/float64(b.N), "first-frame-ms")
			b.ReportMetric(100*float64(busy)/float64(whole), "cpu-%")
		})
	}
}

// cpuOf is the CPU time of a process.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third field on
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}
