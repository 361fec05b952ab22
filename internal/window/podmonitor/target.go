// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/strutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The bounds of a target's labels: of those that relabelings work with, and of those
// that its series have.
const (
	maxWorkingLabels = 300
	maxWorkingBytes  = 32 << 10
	maxExtraLabels   = 32
	maxExtraBytes    = 1 << 10
	maxPodLabels     = 64 // of a pod, that relabelings can read
)

// ContainerPort returns the port of the pod that the endpoint names, and its container.
// As for a Prometheus, only ports that a container declares are targets.
func (e *Endpoint) ContainerPort(pod *corev1.Pod) (corev1.ContainerPort, *corev1.Container, error) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, p := range c.Ports {
			if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && (e.Port.StrVal != "" && p.Name == e.Port.StrVal || e.Port.StrVal == "" && p.ContainerPort == e.Port.IntVal) {
				return p, c, nil
			}
		}
	}
	return corev1.ContainerPort{}, nil, fmt.Errorf("pod %s declares no container port %s", pod.Name, e.Port.String())
}

// Labels returns the labels of the series of a pod's endpoint, as the Prometheus
// Operator sets them up. ok is false if relabelings drop the target. Whatever they do,
// namespace, pod and node are those of the API server, and instance is set.
func (e *Endpoint) Labels(pod *corev1.Pod, port corev1.ContainerPort, container *corev1.Container, instance string) (l series.TargetLabels, ok bool, err error) {
	if _, unread := pod.Labels[gpu.UnreadLabels]; unread {
		return l, false, fmt.Errorf("pod %s has too many labels, or too large ones: they are not read", pod.Name)
	}
	l = series.TargetLabels{Node: pod.Spec.NodeName, Namespace: pod.Namespace, Pod: pod.Name}
	b := labels.NewBuilder(labels.EmptyLabels())
	b.Set("namespace", pod.Namespace).Set("pod", pod.Name).Set("container", container.Name).Set("endpoint", e.Port.String())
	b.Set("job", e.defaultJob(pod)).Set("instance", instance)
	for _, name := range e.podLabels {
		if value := pod.Labels[name]; value != "" {
			b.Set(strutil.SanitizeLabelName(name), value)
		}
	}
	if len(e.relabel) > 0 {
		setMeta(b, pod, port, container)
		b.Set(model.AddressLabel, instance).Set(model.SchemeLabel, e.scheme()).Set(model.MetricsPathLabel, e.Path)
		for i, s := range e.relabel {
			if keep, err := s.apply(b); !keep || err != nil {
				if err != nil {
					err = fmt.Errorf("relabelings[%d]: %w", i, err)
				}
				return l, false, err
			}
		}
	}
	set := b.Labels()
	l.Job, l.Instance = cmp.Or(set.Get("job"), e.defaultJob(pod)), cmp.Or(set.Get("instance"), instance)
	if slices.Contains(reservedJobs, l.Job) {
		l.Job = e.monitor.Namespace + "/" + e.monitor.Name
	}
	number, size := 0, len(l.Job)+len(l.Instance)
	set.Range(func(x labels.Label) {
		if strings.HasPrefix(x.Name, model.ReservedLabelPrefix) || slices.Contains(ownLabels, x.Name) {
			return
		}
		number++
		size += len(x.Name) + len(x.Value)
		if size <= maxExtraBytes {
			l.Extra = l.Extra.With(x.Name, x.Value)
		}
	})
	if number > maxExtraLabels || size > maxExtraBytes {
		return l, false, fmt.Errorf("pod %s would have %d labels of %d bytes, at most %d labels of %d bytes are supported", pod.Name, number, size, maxExtraLabels, maxExtraBytes)
	}
	return l, true, nil
}

func (e *Endpoint) scheme() string {
	if e.TLS != nil {
		return "https"
	}
	return "http"
}

// ownLabels are those that series.TargetLabels has fields for.
var ownLabels = []string{"namespace", "pod", "node", "job", "instance"}

// reservedJobs are the jobs of the operator's exporters and of the controller.
var reservedJobs = []string{"gpupilot-agent", "dcgm-exporter", "gpupilot-controller"}

// defaultJob returns the job of a target without relabelings.
func (e *Endpoint) defaultJob(pod *corev1.Pod) string {
	job := ""
	if e.jobLabel != "" {
		job = pod.Labels[e.jobLabel]
	}
	return cmp.Or(job, e.monitor.Namespace+"/"+e.monitor.Name)
}

// setMeta sets the labels that relabelings read, those of Prometheus's discovery of
// pods, without annotations.
func setMeta(b *labels.Builder, pod *corev1.Pod, port corev1.ContainerPort, container *corev1.Container) {
	const prefix = "__meta_kubernetes_"
	b.Set(prefix+"namespace", pod.Namespace)
	set := func(name, value string) { b.Set(prefix+"pod_"+name, value) }
	set("name", pod.Name)
	set("ip", pod.Status.PodIP)
	set("host_ip", pod.Status.HostIP)
	set("node_name", pod.Spec.NodeName)
	set("phase", string(pod.Status.Phase))
	set("uid", string(pod.UID))
	set("ready", isReady(pod))
	set("container_name", container.Name)
	set("container_image", container.Image)
	set("container_port_name", port.Name)
	set("container_port_number", strconv.Itoa(int(port.ContainerPort)))
	set("container_port_protocol", cmp.Or(string(port.Protocol), string(corev1.ProtocolTCP)))
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		set("controller_kind", o.Kind)
		set("controller_name", o.Name)
	}
	names := slices.Sorted(maps.Keys(pod.Labels))
	for _, name := range names[:min(len(names), maxPodLabels)] {
		sanitized := strutil.SanitizeLabelName(name)
		set("label_"+sanitized, pod.Labels[name])
		set("labelpresent_"+sanitized, "true")
	}
}

func isReady(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return strings.ToLower(string(c.Status))
		}
	}
	return "unknown"
}
