// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// node is what a scenario's programs find around them.
type node struct {
	dir  string
	env  []string
	wrap []string // the command that runs them, if it takes one
	ends []func()
}

func (n *node) stop() {
	for _, end := range n.ends {
		end()
	}
}

// prepare writes a scenario's files, and starts its kubelet and API server.
func prepare(s scenario, dir string) (*node, error) {
	n := &node{dir: dir}
	jobs := filepath.Join(dir, "jobs")
	if err := os.MkdirAll(jobs, 0o755); err != nil {
		return nil, err
	}
	files := map[string]string{
		filepath.Join(dir, "gpus"):           strings.Join(s.state, "\n") + "\n",
		filepath.Join(dir, "collectors.csv"): s.csv,
	}
	for name, body := range s.jobs {
		files[filepath.Join(jobs, name)] = body
	}
	if s.web {
		if err := webFiles(files, dir); err != nil {
			return nil, err
		}
	}
	for path, body := range files {
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			return nil, err
		}
	}
	var grants []agentrig.Grant
	for _, p := range s.pods {
		for _, device := range p.devices {
			grants = append(grants, agentrig.Grant{Namespace: namespace, Pod: p.name, Container: "c-" + p.name, Resource: p.resource, DeviceID: device})
		}
	}
	kubelet, err := agentrig.StartKubelet(filepath.Join(dir, "kubelet.sock"), grants)
	if err != nil {
		return nil, err
	}
	n.ends = append(n.ends, kubelet.Stop)
	if s.cluster {
		if err := n.join(s); err != nil {
			n.stop()
			return nil, err
		}
	}
	return n, nil
}

// inPod runs a command as in a pod: with the folder $0 where service accounts
// are, which only the command sees.
const inPod = `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && ln -s "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"`

// join gives the programs a service account and an API server.
func (n *node) join(s scenario) error {
	account := filepath.Join(n.dir, "account")
	if err := os.Mkdir(account, 0o700); err != nil {
		return err
	}
	api, err := agentrig.StartAPIServer(account)
	if err != nil {
		return err
	}
	n.ends = append(n.ends, api.Close)
	api.SetConfigMap("gpus", "metrics", map[string]string{"metrics": s.csv + labelFields})
	for _, p := range s.pods {
		api.SetPod(namespace, p.name, map[string]string{"app": p.name, "app.kubernetes.io/part-of": "compat"})
	}
	n.env = api.Env()
	n.wrap = []string{"unshare", "-m", "sh", "-c", inPod, account}
	return nil
}

// cannotJoin says why programs cannot be run as in a pod here.
func cannotJoin() string {
	if os.Geteuid() != 0 {
		return "it needs root, for a service account that only they see"
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		return fmt.Sprintf("it needs a service account that only they see: %v", err)
	}
	return ""
}
