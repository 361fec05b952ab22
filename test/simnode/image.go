// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/child"
)

// exit is how a container's process ended.
type exit struct {
	code    int32
	message string // what it wrote to its termination log
}

func (e exit) reason() string {
	if e.code == 0 {
		return "Completed"
	}
	return "Error"
}

// setExit keeps how a process ended. It must have ended.
func (p *podRun) setExit(proc *child.Process) {
	if proc.Running() {
		return
	}
	message, _ := os.ReadFile(p.terminationLog()) // most processes write none
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	p.exit = exit{int32(proc.State.ExitCode()), string(message)}
}

func (p *podRun) terminationLog() string {
	return filepath.Join(p.nodes.cfg.Dir, p.node.name, p.pod.Name+".termination")
}

// imageArgv is the command line of the pod's first container, with the directories of
// its ConfigMaps in place of the mount paths.
func (p *podRun) imageArgv() ([]string, error) {
	c := &p.pod.Spec.Containers[0]
	program, ok := p.nodes.cfg.Images[c.Image]
	if !ok {
		return nil, fmt.Errorf("image %s: no program is known for it", c.Image)
	}
	var pairs []string
	for _, m := range c.VolumeMounts {
		if p.configMapOf(m.Name) != "" {
			pairs = append(pairs, "="+m.MountPath+"/", "="+p.volumeDir(m.Name)+"/")
		}
	}
	mounted := strings.NewReplacer(pairs...)
	argv := []string{program}
	for _, arg := range c.Args {
		argv = append(argv, mounted.Replace(arg))
	}
	return argv, nil
}

func (p *podRun) volumeDir(volume string) string {
	return filepath.Join(p.nodes.cfg.Dir, p.node.name, p.pod.Name+"."+volume)
}

// configMapOf is the name of a volume's ConfigMap; empty: it has none.
func (p *podRun) configMapOf(volume string) string {
	for i := range p.pod.Spec.Volumes {
		if v := &p.pod.Spec.Volumes[i]; v.Name == volume && v.ConfigMap != nil {
			return v.ConfigMap.Name
		}
	}
	return ""
}

// configMapPoll is how often a mounted ConfigMap is read again. A kubelet does so about
// once a minute.
const configMapPoll = 200 * time.Millisecond

// mountConfigMaps writes the ConfigMaps of an ExecImage pod, and keeps them up to date
// until ctx is done.
func (p *podRun) mountConfigMaps(ctx context.Context) error {
	if p.pod.Annotations[ExecAnnotation] != ExecImage {
		return nil
	}
	for i := range p.pod.Spec.Volumes {
		v := &p.pod.Spec.Volumes[i]
		if v.ConfigMap == nil {
			continue
		}
		m := &configMapMount{run: p, name: v.ConfigMap.Name, dir: p.volumeDir(v.Name)}
		if err := m.refresh(ctx); err != nil {
			return fmt.Errorf("mount ConfigMap %s: %w", m.name, err)
		}
		p.nodes.done.Go(func() {
			for wait(ctx, configMapPoll) {
				if err := m.refresh(ctx); err != nil && ctx.Err() == nil {
					p.nodes.log.Warn("ConfigMap not refreshed", "pod", p.pod.Name, "configmap", m.name, "err", err)
				}
			}
		})
	}
	return nil
}

// configMapMount is a mounted ConfigMap.
type configMapMount struct {
	run     *podRun
	name    string
	dir     string
	data    map[string]string
	version int
}

// refresh writes the ConfigMap as a kubelet does: the files are links into ..data, which
// is a link that is replaced.
func (m *configMapMount) refresh(ctx context.Context) error {
	cm, err := m.run.nodes.client.CoreV1().ConfigMaps(m.run.pod.Namespace).Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if m.version > 0 && maps.Equal(cm.Data, m.data) {
		return nil
	}
	m.version++
	version := fmt.Sprintf("..v%d", m.version)
	if err := os.MkdirAll(filepath.Join(m.dir, version), 0o755); err != nil {
		return err
	}
	for key, text := range cm.Data {
		if err := os.WriteFile(filepath.Join(m.dir, version, key), []byte(text), 0o644); err != nil {
			return err
		}
	}
	next := filepath.Join(m.dir, "..data_tmp")
	if err := os.Symlink(version, next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(m.dir, "..data")); err != nil {
		return err
	}
	for key := range cm.Data {
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(m.dir, key)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	m.data = cm.Data
	return nil
}
