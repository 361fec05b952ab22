// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

const labelKey = gpu.NodeLabel

// keep updates one GPUExporter's objects and status. bad is why its spec cannot be
// decoded, agentOf whose agent a node has.
func (k *Keeper) keep(ctx context.Context, e *v1alpha1.GPUExporter, bad error, nodes []corev1.Node, agentOf map[string]string) {
	o := &observed{generation: e.Generation, now: time.Now()}
	o.collectors = condition{true, reasonValid, "the list of metrics is in use"}
	if bad != nil {
		o.applied = condition{false, reasonInvalidSpec, excerpt.Of(bad.Error(), maxMessage)}
	} else {
		var collectors string
		collectors, o.collectors = k.collectors(ctx, e)
		o.applied = judge(k.applyAll(ctx, e, collectors))
		if err := k.observe(ctx, e, o, nodes, agentOf); err != nil {
			k.log(e.Name, "a GPUExporter's agents cannot be observed", err)
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	status := makeStatus(&e.Status, o)
	k.log(e.Name, "a GPUExporter's status cannot be written", k.writeStatus(ctx, e, status))
}

// collectors returns the list of metrics to use: the one of the spec, or the last valid
// one.
func (k *Keeper) collectors(ctx context.Context, e *v1alpha1.GPUExporter) (string, condition) {
	text, err := collectorsOf(e, k.deps.Defaults, func(name, key string) (string, error) {
		var m corev1.ConfigMap
		if err := k.deps.Live.Get(ctx, client.ObjectKey{Namespace: k.settings.Namespace, Name: name}, &m); err != nil {
			return "", err
		}
		text, ok := m.Data[key]
		if !ok {
			return "", fmt.Errorf("ConfigMap %s has no key %s", name, key)
		}
		return text, nil
	})
	reason := reasonNotFound
	if err == nil {
		if err = checkCollectors(text, k.deps.Parse); err == nil {
			return text, condition{true, reasonValid, "the list of metrics is in use"}
		}
		reason = reasonInvalid
	}
	var own corev1.ConfigMap
	if k.deps.Live.Get(ctx, client.ObjectKey{Namespace: k.settings.Namespace, Name: ObjectName(e)}, &own) == nil && owns(e, &own) {
		if last := own.Data[collectorsKey]; checkCollectors(last, k.deps.Parse) == nil {
			return last, condition{false, reason, excerpt.Of("the last valid list stays in use: "+err.Error(), maxMessage)}
		}
	}
	return k.deps.Defaults(profileOf(e)), condition{false, reason, excerpt.Of("the profile's own list is in use: "+err.Error(), maxMessage)}
}

// applyAll applies the objects of an exporter. If the API server refuses one of them for
// what the spec asks for, none is changed. Any other error does not stop the others,
// except the DaemonSet, which needs its ConfigMap.
func (k *Keeper) applyAll(ctx context.Context, e *v1alpha1.GPUExporter, collectors string) error {
	if e.Spec.Image == "" && k.settings.Image == "" {
		return &specError{errors.New("spec.image is empty, and so is the controller's --agent-image: set one of them")}
	}
	objects, err := Render(e, Inputs{Settings: k.settings, Collectors: collectors, Installed: k.installed})
	if err != nil {
		return &specError{err}
	}
	if err := k.tryAll(ctx, e, objects); err != nil {
		return err
	}
	var all []error
	for _, o := range objects {
		if err := k.apply(ctx, e, o); err != nil {
			all = append(all, err)
			if o.GetKind() == "ConfigMap" {
				break
			}
		}
	}
	return errors.Join(append(all, k.remove(ctx, e, objects))...)
}

// tryAll returns why the API server refuses the objects of a spec that was not applied
// yet. It changes nothing.
func (k *Keeper) tryAll(ctx context.Context, e *v1alpha1.GPUExporter, objects []*unstructured.Unstructured) error {
	if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionObjectsApplied); c != nil &&
		c.Status == metav1.ConditionTrue && c.ObservedGeneration == e.Generation {
		return nil
	}
	var refused []error
	for _, o := range objects {
		if err := k.apply(ctx, e, o, client.DryRunAll); apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			refused = append(refused, err)
		}
	}
	return errors.Join(refused...)
}

// specError is an error in the spec.
type specError struct{ error }

func judge(err error) condition {
	var spec *specError
	switch {
	case err == nil:
		return condition{true, reasonApplied, "the objects match the spec"}
	case errors.As(err, &spec):
		return condition{false, reasonInvalidSpec, excerpt.Of(err.Error(), maxMessage)}
	case errors.Is(err, errForeign):
		return condition{false, reasonNameTaken, excerpt.Of(err.Error(), maxMessage)}
	}
	for _, one := range flatten(err) {
		if apierrors.IsForbidden(one) {
			return condition{false, reasonForbidden, excerpt.Of(err.Error(), maxMessage)}
		}
		if apierrors.IsInvalid(one) {
			return condition{false, reasonInvalidSpec, excerpt.Of(err.Error(), maxMessage)}
		}
	}
	return condition{false, reasonFailed, excerpt.Of(err.Error(), maxMessage)}
}

// flatten lists the errors of a join.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // a join is not wrapped
		return joined.Unwrap()
	}
	return []error{err}
}

// observe reads the state of the applied objects.
func (k *Keeper) observe(ctx context.Context, e *v1alpha1.GPUExporter, o *observed, nodes []corev1.Node, agentOf map[string]string) error {
	if e.Spec.Discovery != v1alpha1.DiscoveryNone {
		for i := range nodes {
			if selected(&nodes[i]) || needsLabel(&nodes[i]) { // this pass labels the latter
				o.nodes++
			}
		}
	}
	if o.nodes == 0 && probes(e) {
		var err error
		if o.probing, err = k.probing(ctx, e, o.now); err != nil {
			return err
		}
	}
	var ds appsv1.DaemonSet
	err := k.deps.Live.Get(ctx, client.ObjectKey{Namespace: k.settings.Namespace, Name: ObjectName(e)}, &ds)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil || !owns(e, &ds) {
		return nil //nolint:nilerr // there is no DaemonSet yet; the condition ObjectsApplied explains why
	}
	o.daemonSet = &ds
	details := 0
	for _, pod := range k.deps.Pods(labels.SelectorFromSet(selectorOf(e, AgentName))) {
		if pod.DeletionTimestamp != nil {
			continue
		}
		p := stateOf(pod)
		if !p.ready && details < maxProblems && o.now.Sub(p.created) > settle {
			details++
			k.detail(ctx, &p, o.now)
		}
		k.mu.Lock()
		if a := k.reports[pod.Name]; a != nil {
			p.report, p.askErr = a.report, a.err
		}
		k.mu.Unlock()
		if other := agentOf[p.node]; p.node != "" && other != e.Name {
			p.other = other
		}
		if p.node == "" {
			p.node = "(unscheduled)"
		}
		o.pods = append(o.pods, p)
	}
	if int(ds.Status.DesiredNumberScheduled) > len(o.pods) {
		o.missing = k.lastWarning(ctx, "DaemonSet", ds.Name)
	}
	return nil
}

// detail completes the reason why a pod is not ready: the cache lacks parts of its
// status.
func (k *Keeper) detail(ctx context.Context, p *podState, now time.Time) {
	var pod corev1.Pod
	if k.deps.Live.Get(ctx, client.ObjectKey{Namespace: k.settings.Namespace, Name: p.name}, &pod) != nil {
		return // the pod was deleted, or the next pass reads it
	}
	full := stateOf(&pod)
	p.reason, p.message, p.ready, p.node = full.reason, full.message, full.ready, orDefault(full.node, p.node)
	if p.ready || p.reason != "" || now.Sub(p.created) < startGrace/4 {
		return
	}
	// A sandbox or a volume that cannot be made is in Events only.
	if p.message = k.lastWarning(ctx, "Pod", p.name); p.message != "" {
		p.reason = reasonNotReady
	}
}

// lastWarning returns the newest warning about an object of the agents' namespace.
func (k *Keeper) lastWarning(ctx context.Context, kind, name string) string {
	var events corev1.EventList
	err := k.deps.Live.List(ctx, &events, client.InNamespace(k.settings.Namespace), client.MatchingFields{
		"involvedObject.kind": kind, "involvedObject.name": name, "type": corev1.EventTypeWarning,
	})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	newest := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
	return newest.Reason + ": " + newest.Message
}

func lastSeen(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	for _, t := range []time.Time{e.EventTime.Time, e.CreationTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	return at
}

// writeStatus writes a status that has changed, and records Events about conditions that
// became false or true again.
func (k *Keeper) writeStatus(ctx context.Context, e *v1alpha1.GPUExporter, status v1alpha1.GPUExporterStatus) error {
	if equality.Semantic.DeepEqual(e.Status, status) {
		return nil
	}
	u := Kind()
	u.SetName(e.Name)
	body, err := json.Marshal(map[string]any{
		"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": map[string]any{"name": e.Name, "uid": e.UID}, "status": status,
	})
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	err = k.deps.Client.Status().Patch(ctx, u, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	k.announce(e, &status)
	return nil
}

func (k *Keeper) announce(e *v1alpha1.GPUExporter, status *v1alpha1.GPUExporterStatus) {
	about := corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUExporter", Name: e.Name, UID: e.UID}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		before := meta.FindStatusCondition(e.Status.Conditions, c.Type)
		switch {
		case c.Reason == reasonStarting || c.Reason == reasonProbing || c.Type == v1alpha1.ConditionExporterReady && c.Reason != reasonProblems && c.Status == metav1.ConditionFalse:
			// Every start has this reason, and another condition's Event has the same message.
		case c.Status == metav1.ConditionFalse && (before == nil || before.Status != c.Status || before.Reason != c.Reason):
			k.deps.Record(Event{about, corev1.EventTypeWarning, c.Reason, c.Message})
		case c.Status == metav1.ConditionTrue && before != nil && before.Status == metav1.ConditionFalse:
			k.deps.Record(Event{about, corev1.EventTypeNormal, c.Reason, c.Message})
		}
	}
}

// decode decodes one stored GPUExporter. On an error, the result has the metadata only:
// a CRD of another version may have accepted an invalid spec. A status that cannot be
// decoded is ignored, because it is written again.
func decode(u *unstructured.Unstructured) (*v1alpha1.GPUExporter, error) {
	e := &v1alpha1.GPUExporter{}
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	if convert(u.Object, e) == nil {
		return e, nil
	}
	fields := map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": u.Object["metadata"], "spec": u.Object["spec"]}
	e = &v1alpha1.GPUExporter{}
	err := convert(fields, e)
	if err == nil {
		return e, nil
	}
	bare := &v1alpha1.GPUExporter{TypeMeta: metav1.TypeMeta{APIVersion: u.GetAPIVersion(), Kind: u.GetKind()}}
	bare.Name, bare.UID, bare.Generation, bare.DeletionTimestamp = u.GetName(), u.GetUID(), u.GetGeneration(), u.GetDeletionTimestamp()
	return bare, fmt.Errorf("spec: %w", err)
}

func ctxDone(err error) bool { return errors.Is(err, context.Canceled) }
