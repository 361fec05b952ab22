// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/test/child"
)

// process is a program on the node. It ends with the namespaces at the latest.
type process struct {
	*child.Process
	name string
	log  string // file that has all it printed
}

// start starts a program, its output appended to name.log in logs.
func start(logs, name, program string, args, env []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log")}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	var err error
	if p.Process, err = child.StartLogged(cmd, p.log); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// stop terminates the program, kills it after patience, and returns when it has ended.
func (p *process) stop(patience time.Duration) { p.End(syscall.SIGTERM, patience) }

// ended returns nil while the program runs, and then an error with the end of its log.
func (p *process) ended() error {
	if p.Running() {
		return nil
	}
	return fmt.Errorf("%s has ended (%s); its log ends:\n%s", p.name, p.State, tail(p.log))
}

// tail returns the end of a log, as an error quotes it.
func tail(path string) string { return child.Tail(path, 3000) }
