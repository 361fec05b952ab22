// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// agentVariable is the environment variable that names the agent to test, in place of that of bin.
const agentVariable = "GPUPILOT_AGENT"

// partsVariable is the environment variable that hands the parts to the nested stages.
const partsVariable = "GPUPILOT_REALNODE_PARTS"

// Parts are the files that the first stage builds and downloads. The test stage has no network access.
type Parts struct {
	Kube    string  // control plane and kubelet
	Agent   string  // gpupilot-agent
	Payload string  // static program of the containers
	Runtime Runtime // containerd and runc
	Cgroup  string  // cgroup of the node's pods
	Logs    string  // folder for the programs' output
}

// PrepareParts finds, builds and downloads the parts, except the cgroup; root is the checkout, in which make has built the
// agent, unless GPUPILOT_AGENT names another.
func PrepareParts(ctx context.Context, root, dir string) (Parts, error) {
	p := Parts{Agent: os.Getenv(agentVariable), Payload: filepath.Join(dir, "payload"), Logs: filepath.Join(dir, "logs")}
	err := os.Mkdir(p.Logs, 0o755)
	if err != nil {
		return p, err
	}
	if p.Runtime, err = FetchRuntime(ctx, cacheDir()); err != nil {
		return p, err
	}
	if p.Kube, err = findKube(ctx, root); err != nil {
		return p, err
	}
	if _, err := output(ctx, root, "env", "CGO_ENABLED=0", "go", "build", "-tags=netgo,osusergo", "-ldflags=-s -w", "-o", p.Payload, "./test/e2e/realnode/payload"); err != nil {
		return p, fmt.Errorf("build the containers' program: %w", err)
	}
	if p.Agent == "" {
		p.Agent = filepath.Join(root, "bin", "gpupilot-agent")
	}
	if _, err := os.Stat(p.Agent); err != nil {
		return p, fmt.Errorf("%w: make builds the agent", err)
	}
	return p, nil
}

// findKube returns the control plane's binary, and builds it if it is missing.
func findKube(ctx context.Context, root string) (string, error) {
	binary, err := cluster.FindBinary()
	if !errors.Is(err, cluster.ErrNoBinary) {
		return binary, err
	}
	if _, err := output(ctx, root, filepath.Join(root, "test/kube/build.sh")); err != nil {
		return "", err
	}
	return cluster.FindBinary()
}

// cacheDir returns the cache of downloads and builds, as in test/kube/build.sh.
func cacheDir() string {
	if dir := os.Getenv("GPUPILOT_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "gpupilot")
	}
	return filepath.Join(os.Getenv("HOME"), ".cache", "gpupilot")
}

// Environ returns the parts as an environment variable, for [InheritParts].
func (p Parts) Environ() (string, error) {
	text, err := json.Marshal(p)
	return partsVariable + "=" + string(text), err
}

// InheritParts reads the parts of the first stage.
func InheritParts() (Parts, error) {
	var p Parts
	err := json.Unmarshal([]byte(os.Getenv(partsVariable)), &p)
	return p, err
}

// MakeMountPoints makes the folders that the node mounts on where the machine lacks them; undo removes those again.
func MakeMountPoints() (undo func() error, err error) {
	var made []string
	undo = func() error {
		var failed error
		for _, dir := range made {
			failed = errors.Join(failed, os.Remove(dir))
		}
		return failed
	}
	for _, dir := range privateDirs {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, fs.ErrExist):
			return undo, err
		}
	}
	return undo, nil
}
