// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Port is a port of a pod that is read.
type Port struct {
	Number    int32
	Name      string // as a container declares it; empty: without a name
	Container string // that declares it; empty: none does
	Why       string // this container was chosen, as the rest of a sentence; empty: it was not a choice
}

// String describes the port for a message.
func (p Port) String() string {
	out := fmt.Sprintf("port %d", p.Number)
	if p.Name != "" {
		out += " (" + p.Name + ")"
	}
	if p.Container == "" {
		return out + ", which no container declares"
	}
	if out += " of container " + p.Container; p.Why != "" {
		out += ", which " + p.Why
	}
	return out
}

// containers returns the containers that run beside each other in a pod: sidecars are init
// containers that restart always.
func containers(pod *corev1.Pod) []*corev1.Container {
	out := make([]*corev1.Container, 0, len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

// requestsGPUs reports whether a container requests devices. Of the limits of pods in memory,
// only those of GPUs are kept.
func requestsGPUs(c *corev1.Container) bool {
	for name, q := range c.Resources.Limits {
		if strings.Contains(string(name), "/") && !q.IsZero() {
			return true
		}
	}
	return false
}

// declared returns the first port of the containers that matches.
func declared(all []*corev1.Container, matches func(*corev1.ContainerPort) bool) (Port, bool) {
	for _, c := range all {
		for i := range c.Ports {
			if p := &c.Ports[i]; matches(p) {
				return Port{Number: p.ContainerPort, Name: p.Name, Container: c.Name}, true
			}
		}
	}
	return Port{}, false
}

func withNumber(n int32) func(*corev1.ContainerPort) bool {
	return func(p *corev1.ContainerPort) bool { return p.ContainerPort == n }
}

func withName(name string) func(*corev1.ContainerPort) bool {
	return func(p *corev1.ContainerPort) bool { return p.Name == name }
}

// serverOf returns the container of a pod that is the inference server, and why: the one that
// requests the GPUs, else that has a resource claim; of several or of none of these, the first
// that declares the server's usual port. nil: it is not known.
func serverOf(all []*corev1.Container, usual int32) (server *corev1.Container, why string) {
	for _, has := range []func(*corev1.Container) bool{requestsGPUs, func(c *corev1.Container) bool { return len(c.Resources.Claims) > 0 }} {
		mine := slices.DeleteFunc(slices.Clone(all), func(c *corev1.Container) bool { return !has(c) })
		if len(mine) == 1 {
			return mine[0], "requests the GPUs"
		}
		if len(mine) > 1 {
			all = mine
			break
		}
	}
	for _, c := range all {
		if usual > 0 && slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == usual }) {
			return c, fmt.Sprintf("declares port %d", usual)
		}
	}
	return nil, ""
}

// PodPort returns the port of a pod that serves its metrics. One that is given counts. Else it
// is the server's: the port named metrics, the usual port, or the only one. Where no container
// is known to be the server, the ports of all count.
func PodPort(pod *corev1.Pod, port policy.Port) (Port, error) {
	all := containers(pod)
	server, why := serverOf(all, port.Default)
	if port.Given != nil {
		return givenPort(pod, all, server, port.Given)
	}
	candidates := all
	if server != nil {
		candidates = []*corev1.Container{server}
	}
	of := func(p Port) (Port, error) {
		if len(all) > 1 && p.Container != "" {
			p.Why = why
		}
		return p, nil
	}
	count := 0
	for _, c := range candidates {
		count += len(c.Ports)
	}
	if port.Default == 0 {
		if count != 1 {
			candidates, count = all, 0
			for _, c := range all {
				count += len(c.Ports)
			}
		}
		if count != 1 {
			return Port{}, fmt.Errorf("pod %s has %d container ports%s; name the one that serves its metrics in signals[].pods.port", pod.Name, count, listPorts(all))
		}
		p, _ := declared(candidates, func(*corev1.ContainerPort) bool { return true })
		return of(p)
	}
	if p, ok := declared(candidates, withName("metrics")); ok {
		return of(p)
	}
	if p, ok := declared(candidates, withNumber(port.Default)); ok {
		return of(p)
	}
	if count == 1 && !port.SeparateFromAPI {
		p, _ := declared(candidates, func(*corev1.ContainerPort) bool { return true })
		return of(p)
	}
	if p, ok := declared(all, withNumber(port.Default)); ok { // of another container than the server
		return Port{}, fmt.Errorf("pod %s: the server is container %s, which %s, but port %d is container %s's; set port in the signal to the one that serves the server's metrics",
			pod.Name, server.Name, why, port.Default, p.Container)
	}
	return Port{Number: port.Default}, nil
}

// givenPort returns the port of a pod that a signal names by its number or its name. A name
// that several containers have is the server's.
func givenPort(pod *corev1.Pod, all []*corev1.Container, server *corev1.Container, given *intstr.IntOrString) (Port, error) {
	if server != nil {
		all = append([]*corev1.Container{server}, all...)
	}
	if given.Type == intstr.Int {
		p, ok := declared(all, withNumber(given.IntVal))
		if !ok {
			p.Number = given.IntVal
		}
		return p, nil
	}
	p, ok := declared(all, withName(given.StrVal))
	if !ok {
		return Port{}, fmt.Errorf("pod %s has no container port named %q%s", pod.Name, given.StrVal, listPorts(containers(pod)))
	}
	return p, nil
}

// maxPorts bounds the text about a pod's ports, in bytes.
const maxPorts = 200

// listPorts lists the ports that containers declare, in parentheses.
func listPorts(all []*corev1.Container) string {
	var out []string
	for _, c := range all {
		for _, p := range c.Ports {
			text := fmt.Sprintf("%s: %d", c.Name, p.ContainerPort)
			if p.Name != "" {
				text += " " + p.Name
			}
			out = append(out, text)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + excerpt.Of(strings.Join(out, ", "), maxPorts) + ")"
}
