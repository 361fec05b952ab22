// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// deadline is far beyond what a block takes: only one that hangs meets it.
const deadline = 10 * time.Minute

// Every block "sh test" runs, and prints what the block "text output" behind it says.
func TestCommands(t *testing.T) {
	bin := programs(t)
	ran := 0
	for _, p := range pages(t) {
		for i, b := range p.blocks {
			if b.lang != "sh" || b.info != "test" {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s:%d", p.path, b.line), func(t *testing.T) {
				out := execute(t, bin, b.text)
				if i+1 < len(p.blocks) && p.blocks[i+1].info == "output" {
					if missing := missingLine(p.blocks[i+1].text, out); missing != "" {
						t.Errorf("it does not print, where the page has it, the line\n%s\nbut prints\n%s", missing, out)
					}
				}
			})
		}
	}
	if ran < 3 {
		t.Errorf("%d blocks ran: are the pages still read?", ran)
	}
}

// programs is the directory of the programs, which make builds.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpupilot", "gpupilot-agent"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Skipf("make builds it: %v", err)
		}
	}
	return bin
}

// execute runs a script in a directory of its own, with a copy of examples/. The
// agent's port 9400 is a free one here, below those that the kernel gives to the
// servers of other tests: one of them could answer in the agent's place.
func execute(t *testing.T, bin, script string) string {
	t.Helper()
	for attempt := 0; ; attempt++ {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(root, "examples"))); err != nil {
			t.Fatal(err)
		}
		port, err := cluster.FreePort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		out, err := runScript(t.Context(), dir, bin, strings.ReplaceAll(script, ":9400", fmt.Sprintf(":%d", port)))
		log, readErr := os.ReadFile(filepath.Join(dir, "agent.log"))
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
			t.Fatal(readErr)
		}
		// Another program may have taken the port meanwhile.
		if strings.Contains(out+string(log), "address already in use") && attempt < 4 {
			continue
		}
		// On a machine that does other work, a source of gpupilot load --check may be right and late: the exit code is 1.
		exit, ended := errors.AsType[*exec.ExitError](err)
		if err != nil && (!ended || exit.ExitCode() != 1 || !strings.Contains(script, " --check ")) {
			t.Fatalf("%v\n%s\nagent.log:\n%s", err, out, log)
		}
		return out
	}
}

// runScript runs a script and ends whatever it leaves running in the background.
func runScript(ctx context.Context, dir, bin, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG=/dev/null")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endGroup := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = endGroup
	file, err := os.Create(filepath.Join(dir, ".output"))
	if err != nil {
		return "", err
	}
	defer file.Close()
	// A file, and not a pipe, so that Wait does not wait for what is in the background.
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return "", err
	}
	err = cmd.Wait()
	if killed := endGroup(); killed != nil && !errors.Is(killed, syscall.ESRCH) {
		err = errors.Join(err, killed)
	}
	out, readErr := os.ReadFile(file.Name())
	return string(out), errors.Join(err, readErr)
}

// missingLine is the first line of want that out does not have behind the one
// before it. A line that ends with … need only begin so; … alone is any lines.
func missingLine(want, out string) string {
	lines := strings.Split(out, "\n")
	for w := range strings.Lines(want) {
		w = strings.TrimRight(w, " \n")
		if w == "" || w == "…" {
			continue
		}
		at := 0
		for at < len(lines) && !same(w, strings.TrimRight(lines[at], " ")) {
			at++
		}
		if at == len(lines) {
			return w
		}
		lines = lines[at+1:]
	}
	return ""
}

func same(want, got string) bool {
	if head, ok := strings.CutSuffix(want, "…"); ok {
		return strings.HasPrefix(got, head)
	}
	return want == got
}

func TestMissingLine(t *testing.T) {
	f := func(want, out, missing string) {
		t.Helper()
		if got := missingLine(want, out); got != missing {
			t.Errorf("%q in %q: %q is missing, want %q", want, out, got, missing)
		}
	}
	f("a\n…\nc\n", "a\nb\nc\n", "")
	f("c\na\n", "a\nc\n", "a")
	f("met…\n", "metric 1\n", "")
	f("met\n", "metric 1\n", "met")
}
