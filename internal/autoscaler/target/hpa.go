// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// HPAs creates, keeps and deletes the HorizontalPodAutoscalers of GPUAutoscalers with actuation: HPA. Which one is a
// GPUAutoscaler's own is decided by its UID, which the status of the GPUAutoscaler has: whoever may create
// HorizontalPodAutoscalers chooses names, labels and owner references.
type HPAs struct {
	*Scaler // its client reads from the cache, which has no specs but the targets
	live    client.Reader
}

// HPAs returns the keeper of HorizontalPodAutoscalers. live reads from the API server.
func (s *Scaler) HPAs(live client.Reader) *HPAs { return &HPAs{s, live} }

// maxUID bounds a UID that a status has: the API server's have 36 characters.
const maxUID = 64

// HPA is what is known of the HorizontalPodAutoscaler of one GPUAutoscaler. One goroutine uses it.
type HPA struct {
	UID     types.UID // empty: there is none
	Problem string    // why the HPA controller does not follow the metric, and what to do; empty: it does, or has not synced

	owner   types.UID // the GPUAutoscaler
	deleted types.UID // the cache may still have it
	version string    // at which it was last as wanted
	want    autoscalingv2.HorizontalPodAutoscalerSpec
	foreign string // a version with the name that is not owned
}

// HPAName returns the name of the HorizontalPodAutoscaler of a GPUAutoscaler.
func HPAName(autoscaler string) string { return "gpupilot-" + autoscaler }

// Follow takes over what the leader has recorded in the status of a, if this replica does not lead, or if a is another
// object than before.
func (x *HPA) Follow(a *v1alpha1.GPUAutoscaler, leading bool) {
	if leading && x.owner == a.UID {
		return
	}
	*x = HPA{owner: a.UID, deleted: x.deleted}
	if s := a.Status.HPA; s != nil && len(s.UID) <= maxUID {
		x.UID = s.UID
	}
}

// Owned returns the UIDs that are no rivals.
func (x *HPA) Owned() []types.UID {
	return slices.DeleteFunc([]types.UID{x.UID, x.deleted}, func(uid types.UID) bool { return uid == "" })
}

// Status returns the part of a status about x; nil: there is none.
func (x *HPA) Status(autoscaler string) *v1alpha1.OwnedHPA {
	if x.UID == "" {
		return nil
	}
	return &v1alpha1.OwnedHPA{Name: HPAName(autoscaler), UID: x.UID}
}

// Range is the bounds of a HorizontalPodAutoscaler.
type Range struct{ Low, High int32 }

// RangeOf returns the bounds in force, widened to include the decided replicas: beyond its bounds, a
// HorizontalPodAutoscaler reads no metric. A budget decides below the minimum, and a drain above the maximum. At 0
// replicas that somebody has set, it does nothing.
func RangeOf(p *scale.Policy, decided int32) Range {
	low := p.Min
	if decided > 0 {
		low = min(low, decided)
	}
	return Range{low, max(p.Max, decided, 1)}
}

// Metric and label by which a HorizontalPodAutoscaler reads the replicas that a GPUAutoscaler decided.
const (
	DesiredMetric   = "gpupilot_desired_replicas"
	AutoscalerLabel = "gpuautoscaler"
	// stopPrefix begins the name of the metric of a stopped HorizontalPodAutoscaler, which nobody serves.
	stopPrefix = "gpupilot-stopped-"
)

// anyStep is a policy that allows each change. The HPA controller adds it to the replicas in 32 bits.
const anyStep = 1 << 30

// rules returns one direction of a behavior that follows the metric at once. Without a tolerance of 0, the metric's ratio to
// the current replicas changes nothing within 10 %: from 10 replicas on, one more would never come.
func rules(policy autoscalingv2.HPAScalingPolicyType, value int32, choice autoscalingv2.ScalingPolicySelect) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: new(int32(0)), SelectPolicy: &choice, Tolerance: quantity(0),
		Policies: []autoscalingv2.HPAScalingPolicy{{Type: policy, Value: value, PeriodSeconds: 1}},
	}
}

// specOf returns the spec of the HorizontalPodAutoscaler of a GPUAutoscaler, with every field that the API server would
// set.
func specOf(t *Target, autoscaler string, r Range) autoscalingv2.HorizontalPodAutoscalerSpec {
	return autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: t.gvk.GroupVersion().String(), Kind: t.Kind, Name: t.name},
		MinReplicas:    &r.Low, MaxReplicas: r.High,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: DesiredMetric, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{AutoscalerLabel: autoscaler}}},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity(1)},
		}}},
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(autoscalingv2.PodsScalingPolicy, anyStep, autoscalingv2.MaxChangePolicySelect),
			ScaleDown: rules(autoscalingv2.PercentScalingPolicy, 100, autoscalingv2.MaxChangePolicySelect),
		},
	}
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

// stopped returns a spec that sets no replicas. Its metric has a name of its own, which appears in the HPA controller's
// next condition: no earlier sync writes after that.
func stopped(spec *autoscalingv2.HorizontalPodAutoscalerSpec, generation int64) autoscalingv2.HorizontalPodAutoscalerSpec {
	return autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: spec.ScaleTargetRef, MinReplicas: new(int32(1)), MaxReplicas: math.MaxInt32,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: fmt.Sprint(stopPrefix, generation)},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity(1)},
		}}},
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(autoscalingv2.PodsScalingPolicy, 1, autoscalingv2.DisabledPolicySelect),
			ScaleDown: rules(autoscalingv2.PodsScalingPolicy, 1, autoscalingv2.DisabledPolicySelect),
		},
	}
}

// stopMetric returns the name of the metric of a stopped HorizontalPodAutoscaler; empty: it is not stopped.
func stopMetric(spec *autoscalingv2.HorizontalPodAutoscalerSpec) string {
	if len(spec.Metrics) != 1 || spec.Metrics[0].External == nil {
		return ""
	}
	name := spec.Metrics[0].External.Metric.Name
	var generation int64
	if _, err := fmt.Sscanf(name, stopPrefix+"%d", &generation); err != nil || !equality.Semantic.DeepEqual(*spec, stopped(spec, generation)) {
		return ""
	}
	return name
}

// hasSeenStop reports whether the HPA controller has synced a stopped object. It computes nothing for an object whose
// target has 0 replicas, or shares its pods with another one.
func hasSeenStop(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	c := scalingActive(h)
	return c != nil && (strings.Contains(c.Message, stopMetric(&h.Spec)+"/") || c.Reason == "ScalingDisabled" || c.Reason == "AmbiguousSelector")
}

// scalingActive returns the condition ScalingActive if it is False, else nil.
func scalingActive(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscalerCondition {
	for i := range h.Status.Conditions {
		if c := &h.Status.Conditions[i]; c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// ErrForeignHPA means that somebody else's HorizontalPodAutoscaler has the name of a GPUAutoscaler's own. It is not changed.
var ErrForeignHPA = errors.New("is not owned by this GPUAutoscaler, and is not changed")

// claims reports whether an object whose UID is not recorded is a's own: it was created just before a replica of the
// controller ended. Its spec is then what the controller creates, so that one that somebody else made does the same.
func claims(a *v1alpha1.GPUAutoscaler, h *autoscalingv2.HorizontalPodAutoscaler) bool {
	owner := metav1.GetControllerOfNoCopy(h)
	if owner == nil || owner.UID != a.UID || h.Spec.MinReplicas == nil {
		return false
	}
	ref := a.Spec.ScaleTargetRef
	if _, k := OfHPA(h); k != KeyOf(a.Namespace, ref.APIVersion, ref.Kind, ref.Name) {
		return false
	}
	want := specOf(&Target{}, a.Name, Range{*h.Spec.MinReplicas, h.Spec.MaxReplicas})
	want.ScaleTargetRef = h.Spec.ScaleTargetRef
	return equality.Semantic.DeepEqual(h.Spec, want) || stopMetric(&h.Spec) != ""
}

func keyOfHPA(a *v1alpha1.GPUAutoscaler) client.ObjectKey {
	return client.ObjectKey{Namespace: a.Namespace, Name: HPAName(a.Name)}
}

// Find looks for an object that an earlier leader created, and could not record.
func (s *HPAs) Find(ctx context.Context, a *v1alpha1.GPUAutoscaler, x *HPA) {
	var h autoscalingv2.HorizontalPodAutoscaler
	if x.UID != "" || s.client.Get(ctx, keyOfHPA(a), &h) != nil || h.UID == x.deleted || h.ResourceVersion == x.foreign {
		return
	}
	if owner := metav1.GetControllerOfNoCopy(&h); owner == nil || owner.UID != a.UID {
		return
	}
	version := h.ResourceVersion
	h = autoscalingv2.HorizontalPodAutoscaler{}
	if s.live.Get(ctx, keyOfHPA(a), &h) != nil {
		return
	}
	if x.foreign = version; claims(a, &h) {
		x.UID = h.UID
	}
}

// IsKept reports whether the cache has the object as it was last written, and nothing else is wanted now.
func (s *HPAs) IsKept(ctx context.Context, a *v1alpha1.GPUAutoscaler, t *Target, r Range, x *HPA) bool {
	var h autoscalingv2.HorizontalPodAutoscaler
	return x.UID != "" && s.client.Get(ctx, keyOfHPA(a), &h) == nil && h.UID == x.UID && h.ResourceVersion == x.version &&
		equality.Semantic.DeepEqual(x.want, specOf(t, a.Name, r))
}

// Keep creates the HorizontalPodAutoscaler of a, or puts it back to what it is to be.
func (s *HPAs) Keep(ctx context.Context, a *v1alpha1.GPUAutoscaler, t *Target, r Range, x *HPA) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { return s.keep(ctx, a, t, r, x) })
}

func (s *HPAs) keep(ctx context.Context, a *v1alpha1.GPUAutoscaler, t *Target, r Range, x *HPA) error {
	if len(a.Name) > validation.LabelValueMaxLength {
		return fmt.Errorf("actuation: HPA needs a name of at most %d characters, by which the HorizontalPodAutoscaler selects its metric; this one has %d", validation.LabelValueMaxLength, len(a.Name))
	}
	var h autoscalingv2.HorizontalPodAutoscaler
	want := specOf(t, a.Name, r)
	err := s.live.Get(ctx, keyOfHPA(a), &h)
	switch {
	case apierrors.IsNotFound(err):
		return s.create(ctx, a, want, x)
	case err != nil:
		return fmt.Errorf("read HorizontalPodAutoscaler %s: %w", HPAName(a.Name), err)
	case h.UID != x.UID && !claims(a, &h):
		return fmt.Errorf("HorizontalPodAutoscaler %s %w: delete or rename it, or set actuation: Scale", h.Name, ErrForeignHPA)
	}
	x.UID, x.Problem = h.UID, ""
	if c := scalingActive(&h); c != nil {
		x.Problem = fmt.Sprintf("HorizontalPodAutoscaler %s does not follow the metric %s: %s: %s. It needs the controller's --external-metrics "+
			"(chart: externalMetrics.enabled), and an APIService of external.metrics.k8s.io that is GPUPilot's: docs/hpa.md", h.Name, DesiredMetric, c.Reason, c.Message)
	}
	if owner := metav1.GetControllerOfNoCopy(&h); owner == nil || owner.UID != a.UID || !equality.Semantic.DeepEqual(h.Spec, want) {
		h.Spec = want
		h.OwnerReferences = []metav1.OwnerReference{ownerOf(a)}
		if err := s.client.Update(ctx, &h); err != nil {
			return fmt.Errorf("change HorizontalPodAutoscaler %s: %w", h.Name, explain(err, r))
		}
		if err := check(&h, &want); err != nil {
			return err
		}
	}
	x.version, x.want = h.ResourceVersion, want
	return nil
}

// create asks the API server first what it would store: without the tolerance, the object would set other replicas.
func (s *HPAs) create(ctx context.Context, a *v1alpha1.GPUAutoscaler, want autoscalingv2.HorizontalPodAutoscalerSpec, x *HPA) error {
	for _, options := range [][]client.CreateOption{{client.DryRunAll}, nil} {
		h := &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: a.Namespace, Name: HPAName(a.Name), OwnerReferences: []metav1.OwnerReference{ownerOf(a)},
				Labels: map[string]string{"app.kubernetes.io/managed-by": "gpupilot-controller"},
			},
			Spec: *want.DeepCopy(),
		}
		if err := s.client.Create(ctx, h, options...); err != nil {
			return fmt.Errorf("create HorizontalPodAutoscaler %s: %w", h.Name, explain(err, Range{*want.MinReplicas, want.MaxReplicas}))
		}
		if err := check(h, &want); err != nil {
			return err
		}
		if options == nil {
			*x = HPA{owner: a.UID, UID: h.UID, version: h.ResourceVersion, want: want}
		}
	}
	return nil
}

// check returns an error if the API server has stored something else.
func check(h *autoscalingv2.HorizontalPodAutoscaler, want *autoscalingv2.HorizontalPodAutoscalerSpec) error {
	switch b := h.Spec.Behavior; {
	case equality.Semantic.DeepEqual(h.Spec, *want):
		return nil
	case b == nil || b.ScaleUp == nil || b.ScaleUp.Tolerance == nil || b.ScaleDown == nil || b.ScaleDown.Tolerance == nil:
		return fmt.Errorf("HorizontalPodAutoscaler %s would set other replicas: this API server drops behavior.tolerance. "+
			"actuation: HPA needs Kubernetes 1.37, or the feature gate HPAConfigurableTolerance", h.Name)
	}
	return fmt.Errorf("HorizontalPodAutoscaler %s would set other replicas: a webhook of the API server changes its spec", h.Name)
}

// explain says what a refusal of the API server means.
func explain(err error, r Range) error {
	switch {
	case r.Low == 0 && apierrors.IsInvalid(err):
		return fmt.Errorf("%w: minReplicas: 0 needs the feature gate HPAScaleToZero of the API server and the controller manager (on from Kubernetes 1.37)", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: actuation: HPA needs deploy/external-metrics (chart: externalMetrics.enabled)", err)
	}
	return err
}

func ownerOf(a *v1alpha1.GPUAutoscaler) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUAutoscaler", Name: a.Name, UID: a.UID, Controller: new(true)}
}

// Remove deletes the HorizontalPodAutoscaler of a, and says what it waits for; empty: there is none. It stops the object
// first, and deletes it when the HPA controller has seen that: no sync is in flight then. With atOnce it does not wait.
func (s *HPAs) Remove(ctx context.Context, a *v1alpha1.GPUAutoscaler, x *HPA, atOnce bool) (waits string, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		waits, err = s.remove(ctx, a, x, atOnce)
		return err
	})
	return waits, err
}

func (s *HPAs) remove(ctx context.Context, a *v1alpha1.GPUAutoscaler, x *HPA, atOnce bool) (waits string, err error) {
	var h autoscalingv2.HorizontalPodAutoscaler
	err = s.live.Get(ctx, keyOfHPA(a), &h)
	switch {
	case apierrors.IsNotFound(err) || err == nil && h.UID != x.UID:
		*x = HPA{owner: a.UID, deleted: x.UID}
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read HorizontalPodAutoscaler %s: %w", HPAName(a.Name), err)
	case h.DeletionTimestamp != nil:
		return "its HorizontalPodAutoscaler " + h.Name + " is being deleted: finalizers hold it", nil
	case !atOnce && stopMetric(&h.Spec) == "":
		h.Spec = stopped(&h.Spec, a.Generation)
		if err = s.client.Update(ctx, &h); err != nil {
			return "", fmt.Errorf("stop HorizontalPodAutoscaler %s: %w", h.Name, err)
		}
	}
	if !atOnce && !hasSeenStop(&h) {
		return "kube-controller-manager has not seen yet that its HorizontalPodAutoscaler " + h.Name + " is stopped. Delete that to go on without waiting", nil
	}
	uid, version := h.UID, h.ResourceVersion
	if err := s.client.Delete(ctx, &h, client.Preconditions{UID: &uid, ResourceVersion: &version}); err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete HorizontalPodAutoscaler %s: %w", h.Name, err)
	}
	return s.remove(ctx, a, x, atOnce)
}
