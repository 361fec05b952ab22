// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/procs"
)

// checkPlaces checks that the real cgroups, mounts and log directories of these containers, "pod/container", tell whose
// their processes are.
func (w *world) checkPlaces(containers ...string) {
	w.t.Helper()
	table := procs.New(procs.DefaultProc, procs.DefaultLogs)
	for _, name := range containers {
		podName, container, _ := strings.Cut(name, "/")
		pod, err := w.client.CoreV1().Pods("default").Get(w.ctx, podName, metav1.GetOptions{})
		must(w.t, err)
		found := false
		for _, c := range w.givenTo(string(pod.UID)) {
			place := table.Place(c.PID)
			if place.Kind != gpu.InPod || place.PodUID != string(pod.UID) || place.Name != "payload" {
				w.t.Errorf("process %d of %s is placed %+v", c.PID, name, place)
			}
			found = found || place.Container == container && strings.HasSuffix(containerID(pod, container), place.ContainerID) && place.ContainerID != ""
		}
		if !found {
			w.t.Errorf("no process is placed in %s", name)
		}
		if got := table.Pods()[string(pod.UID)]; got != (gpu.PodName{Namespace: "default", Name: podName}) {
			w.t.Errorf("the pod of UID %s is %v", pod.UID, got)
		}
	}
	w.log("processes are placed: %v", containers)
}

// containerID is the id that the runtime gave a container, with its scheme.
func containerID(pod *corev1.Pod, container string) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container {
			return s.ContainerID
		}
	}
	return ""
}

// endPod ends a pod's processes, so that it succeeds, and leaves it there. It waits until each has said that it can be
// told to: before that, the signal is ignored, or the process fails.
func (w *world) endPod(name string) {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
	must(w.t, err)
	w.eventually("the processes of pod "+name+" can be ended", func() error {
		for _, c := range pod.Spec.Containers {
			said, err := os.ReadFile(filepath.Join(procs.DefaultLogs, fmt.Sprintf("default_%s_%s", name, pod.UID), c.Name, "0.log"))
			if err != nil || len(said) == 0 {
				return errors.Join(fmt.Errorf("%s has said nothing", c.Name), err)
			}
		}
		return nil
	})
	for _, c := range w.givenTo(string(pod.UID)) {
		must(w.t, syscall.Kill(c.PID, syscall.SIGTERM))
	}
	w.eventually("pod "+name+" has ended", func() error {
		pod, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	})
	w.log("pod %s has ended and is not deleted", name)
}
