// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A process sees a clock that is wrong, and then one that is right again. Its monotonic clock is right all the time.
func TestSetClock(t *testing.T) {
	const asked = "CHILD_TELLS_THE_TIME"
	if os.Getenv(asked) != "" {
		first := time.Now()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			now := time.Now()
			fmt.Printf("%d %d\n", now.Unix(), now.Sub(first)/time.Second)
		}
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSetClock$")
	cmd.Env = append(os.Environ(), asked+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	began := time.Now()
	for _, by := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute, 0} {
		if err := SetClock(cmd.Process.Pid, by); errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		for range 100 { // whatever thread answers
			before := time.Now().Add(by).Unix()
			if _, err := fmt.Fprintln(in); err != nil || !lines.Scan() {
				t.Fatal(err, lines.Err())
			}
			wall, mono, _ := strings.Cut(lines.Text(), " ")
			at, err := strconv.ParseInt(wall, 10, 64)
			if err != nil || at < before-1 || at > time.Now().Add(by).Unix()+1 {
				t.Fatalf("by %v: it is %d and %q (%v)", by, before, lines.Text(), err)
			}
			if s, err := strconv.ParseInt(mono, 10, 64); err != nil || s > int64(time.Since(began)/time.Second)+1 {
				t.Fatalf("by %v: %q s passed (%v), and not more than %v", by, mono, err, time.Since(began))
			}
		}
	}
}
