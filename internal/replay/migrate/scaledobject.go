// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// scaledObject is what is read of KEDA's ScaledObject, keda.sh/v1alpha1.
type scaledObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		ScaleTargetRef        v1alpha1.CrossVersionObjectReference `json:"scaleTargetRef"`
		PollingInterval       *int32                               `json:"pollingInterval"`
		InitialCooldownPeriod *int32                               `json:"initialCooldownPeriod"`
		CooldownPeriod        *int32                               `json:"cooldownPeriod"`
		IdleReplicaCount      *int32                               `json:"idleReplicaCount"`
		MinReplicaCount       *int32                               `json:"minReplicaCount"`
		MaxReplicaCount       *int32                               `json:"maxReplicaCount"`
		Advanced              *advanced                            `json:"advanced"`
		Triggers              []trigger                            `json:"triggers"`
		Fallback              *fallback                            `json:"fallback"`
	} `json:"spec"`
}

type advanced struct {
	HPA *struct {
		Name     string             `json:"name"`
		Behavior *v1alpha1.Behavior `json:"behavior"`
	} `json:"horizontalPodAutoscalerConfig"`
	RestoreToOriginal bool `json:"restoreToOriginalReplicaCount"`
	Modifiers         *struct {
		Formula          string `json:"formula"`
		Target           string `json:"target"`
		ActivationTarget string `json:"activationTarget"`
		MetricType       string `json:"metricType"`
	} `json:"scalingModifiers"`
}

type trigger struct {
	Type              string            `json:"type"`
	Name              string            `json:"name"`
	Metadata          map[string]string `json:"metadata"`
	MetricType        string            `json:"metricType"`
	UseCachedMetrics  bool              `json:"useCachedMetrics"`
	AuthenticationRef *struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"authenticationRef"`
}

type fallback struct {
	FailureThreshold int32  `json:"failureThreshold"`
	Replicas         int32  `json:"replicas"`
	Behavior         string `json:"behavior"`
}

// kedaMaxReplicas is KEDA's default of maxReplicaCount.
const kedaMaxReplicas = 100

func convertScaledObject(text []byte, o Options) (*Result, error) {
	var in scaledObject
	rest, _, err := decode(text, &in)
	if err != nil {
		return nil, fmt.Errorf("ScaledObject: %w", err)
	}
	in.Metadata.Namespace = cmp.Or(in.Metadata.Namespace, o.Namespace)
	s := &in.Spec
	if s.ScaleTargetRef.Name == "" {
		return nil, fmt.Errorf("ScaledObject %q has no spec.scaleTargetRef.name", in.Metadata.Name)
	}
	s.ScaleTargetRef.Kind = cmp.Or(s.ScaleTargetRef.Kind, "Deployment")
	s.ScaleTargetRef.APIVersion = cmp.Or(s.ScaleTargetRef.APIVersion, "apps/v1")
	r := newResult(KindScaledObject, &in.Metadata, s.ScaleTargetRef)
	r.Peer = contender.HPAObject{Name: in.Metadata.Name + " KEDA", Family: contender.KEDA}
	least := int32(0)
	if s.MinReplicaCount != nil {
		least = *s.MinReplicaCount
	}
	r.Object.Spec.MinReplicas, r.Object.Spec.MaxReplicas = &least, kedaMaxReplicas
	if s.MaxReplicaCount != nil {
		r.Object.Spec.MaxReplicas = *s.MaxReplicaCount
	}
	r.timing(&in)
	r.annotations(in.Metadata.Annotations)
	r.advanced(s.Advanced, in.Metadata.Annotations)
	r.fallback(s.Fallback)
	c := r.converter(o, &in.Metadata)
	c.zeroIfMissing, c.behaviorField = true, "spec.advanced.horizontalPodAutoscalerConfig.behavior"
	for i := range s.Triggers {
		before := len(r.Object.Spec.Signals)
		field := fmt.Sprintf("spec.triggers[%d]", i)
		c.trigger(&s.Triggers[i], field)
		c.nameSignal(&s.Triggers[i], before, field)
	}
	r.leftOver(rest, &in.Metadata)
	c.finish()
	c.cooldown(&in)
	c.modifiers(&in)
	c.accept()
	return r, nil
}

// timing is about the fields of times and of the idle state.
func (r *Result) timing(in *scaledObject) {
	s := &in.Spec
	if s.PollingInterval != nil {
		r.note("spec.pollingInterval", "%d s: a GPUAutoscaler decides every second", *s.PollingInterval)
	}
	if s.InitialCooldownPeriod != nil {
		r.lose("spec.initialCooldownPeriod", "%d s: a new GPUAutoscaler waits for its scale-down window instead", *s.InitialCooldownPeriod)
	}
	if s.IdleReplicaCount == nil {
		return
	}
	if *s.IdleReplicaCount == 0 && r.Object.Spec.MinReplicas != nil && *r.Object.Spec.MinReplicas > 0 {
		r.note("spec.idleReplicaCount", "0: minReplicas becomes 0. From zero, KEDA starts minReplicaCount (%d) replicas; a GPUAutoscaler starts as many as the signals ask for", *r.Object.Spec.MinReplicas)
		zero := int32(0)
		r.Object.Spec.MinReplicas = &zero
		return
	}
	if *s.IdleReplicaCount == 0 {
		r.note("spec.idleReplicaCount", "0: as minReplicas")
		return
	}
	r.lose("spec.idleReplicaCount", "%d: only 0 has an equivalent", *s.IdleReplicaCount)
}

// pauseAnnotations are those of KEDA that are read.
var pauseAnnotations = []string{
	"autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas", "autoscaling.keda.sh/paused-scale-in", "autoscaling.keda.sh/paused-scale-out", "autoscaling.keda.sh/force-activation",
}

// annotations is about KEDA's annotations.
func (r *Result) annotations(a map[string]string) {
	if n, holds := a["autoscaling.keda.sh/paused-replicas"]; holds || isSet(a, "autoscaling.keda.sh/paused") {
		r.Object.Spec.Actuation = v1alpha1.ActuationAdvise
		if holds {
			n = " at " + n + " replicas"
		}
		r.note("metadata.annotations", "KEDA is paused%s: the GPUAutoscaler is in advice mode (actuation: Advise)", n)
	}
	if isSet(a, "autoscaling.keda.sh/force-activation") {
		r.lose("metadata.annotations", "autoscaling.keda.sh/force-activation=%s: set minReplicas", a["autoscaling.keda.sh/force-activation"])
	}
}

// isSet reports whether KEDA takes an annotation for true: it does with what is no boolean.
func isSet(a map[string]string, key string) bool {
	value, ok := a[key]
	is, err := strconv.ParseBool(value)
	return ok && (is || err != nil)
}

// withPauses adds the directions that annotations pause, as KEDA does to its HorizontalPodAutoscaler.
func (r *Result) withPauses(b *v1alpha1.Behavior, a map[string]string) *v1alpha1.Behavior {
	pause := func(key string, rules func(*v1alpha1.Behavior) **v1alpha1.ScalingRules, field string) {
		if !isSet(a, key) {
			return
		}
		if b = b.DeepCopy(); b == nil {
			b = &v1alpha1.Behavior{}
		}
		to := rules(b)
		if *to == nil {
			*to = &v1alpha1.ScalingRules{}
		}
		instead := ""
		if old := (*to).SelectPolicy; old != nil {
			instead = " instead of " + *old
		}
		(*to).SelectPolicy = new("Disabled")
		r.note("metadata.annotations", "%s=%s: behavior.%s.selectPolicy is Disabled%s", key, a[key], field, instead)
	}
	pause("autoscaling.keda.sh/paused-scale-in", func(b *v1alpha1.Behavior) **v1alpha1.ScalingRules { return &b.ScaleDown }, "scaleDown")
	pause("autoscaling.keda.sh/paused-scale-out", func(b *v1alpha1.Behavior) **v1alpha1.ScalingRules { return &b.ScaleUp }, "scaleUp")
	return b
}

func (r *Result) advanced(a *advanced, annotations map[string]string) {
	var behavior *v1alpha1.Behavior
	if a != nil && a.HPA != nil {
		behavior = a.HPA.Behavior
	}
	r.setBehavior(r.withPauses(behavior, annotations), "spec.advanced.horizontalPodAutoscalerConfig.behavior")
	if a == nil {
		return
	}
	if a.HPA != nil && a.HPA.Name != "" {
		r.note("spec.advanced.horizontalPodAutoscalerConfig.name", "%s: a GPUAutoscaler scales without a HorizontalPodAutoscaler", a.HPA.Name)
	}
	if a.RestoreToOriginal {
		r.lose("spec.advanced.restoreToOriginalReplicaCount", "true: a GPUAutoscaler that is deleted leaves the replicas as they are; with onDelete: Restore, it sets those from before it scaled")
	}
}

func (r *Result) fallback(f *fallback) {
	if f == nil {
		return
	}
	n := intstr.FromInt32(f.Replicas)
	switch f.Behavior {
	case "", "static":
		r.Object.Spec.MissingData = &n
		r.note("spec.fallback", "%s: KEDA sets %d replicas. missingData: %[2]d never scales down: it sets the greater of the current replicas and %[2]d", cmp.Or(f.Behavior, "static"), f.Replicas)
	case "currentReplicasIfHigher":
		r.Object.Spec.MissingData = &n
		r.note("spec.fallback", "currentReplicasIfHigher, %d replicas: missingData: %d", f.Replicas, f.Replicas)
	case "currentReplicas":
		r.note("spec.fallback", "currentReplicas is the default, missingData: Hold; replicas %d is not used", f.Replicas)
	default:
		r.lose("spec.fallback.behavior", "%s, %d replicas: missing data never scales a GPUAutoscaler down; it holds", f.Behavior, f.Replicas)
	}
	r.note("spec.fallback.failureThreshold", "%d failures: a GPUAutoscaler reacts when no signal has had a value for a minute", f.FailureThreshold)
}

// trigger translates one trigger.
func (c *converter) trigger(t *trigger, field string) {
	before := len(c.result.Object.Spec.Signals) + len(c.result.Object.Spec.Schedules)
	lose := func(why string) { c.result.lose(field, "%s: %s", t, why) }
	var known []string // keys of the metadata that are read or named
	switch t.Type {
	case "prometheus":
		c.prometheusTrigger(t, field)
		known = prometheusKeys
	case "cpu", "memory":
		c.resourceTrigger(t, field)
		known = []string{"value", "type", "containerName"}
	case "cron":
		c.cronTrigger(t, field)
		known = []string{"start", "end", "desiredReplicas", "timezone"}
	case "external", "external-push":
		lose("a gRPC service, and GPUPilot calls none. Use the metric behind it as gpu, pods or query")
	case "metrics-api":
		lose("a JSON document: expose the value in the Prometheus format, and use pods or query")
	case "kubernetes-workload":
		lose("a number of pods: use a query, such as count(kube_pod_info{…}), where kube-state-metrics or the controller's own series have it")
	default:
		lose("scrape an exporter of that system, and use its metric in a query")
	}
	if known == nil {
		return
	}
	if text := pairs(t.Metadata, func(key string) bool { return slices.Contains(known, key) }); text != "" {
		c.result.lose(field+".metadata", "%s: has no equivalent", text)
	}
	if t.UseCachedMetrics {
		c.result.note(field+".useCachedMetrics", "true: the controller asks each query once, whoever needs it")
	}
	if t.AuthenticationRef != nil && t.Type != "prometheus" {
		c.result.lose(field+".authenticationRef", "%s: has no equivalent", t.auth())
	}
	if spec := &c.result.Object.Spec; len(spec.Signals)+len(spec.Schedules) == before {
		c.result.lose(field, "as written: %s", t)
	}
}

// prometheusKeys are the keys of the metadata of a prometheus trigger that are read or named.
var prometheusKeys = append([]string{"query", "threshold", "activationThreshold", "ignoreNullValues", "serverAddress", "namespace"}, credentialKeys...)

// credentialKeys are those of the connection.
var credentialKeys = []string{"authModes", "customHeaders", "unsafeSsl", "awsRegion", "queryParameters", "timeout"}

func (t *trigger) auth() string {
	text := cmp.Or(t.AuthenticationRef.Kind, "TriggerAuthentication") + " " + t.AuthenticationRef.Name
	return strings.TrimSpace(text)
}

// String is a trigger with all that it has, for a note.
func (t *trigger) String() string {
	out := "the trigger " + t.Type
	if t.Name != "" {
		out += " " + t.Name
	}
	if t.MetricType != "" {
		out += ", " + t.MetricType
	}
	if t.AuthenticationRef != nil {
		out += ", " + t.auth()
	}
	if t.UseCachedMetrics {
		out += ", useCachedMetrics true"
	}
	if text := pairs(t.Metadata, nil); text != "" {
		out += " (" + text + ")"
	}
	return out
}

func (c *converter) prometheusTrigger(t *trigger, field string) {
	md := t.Metadata
	query, threshold := strings.TrimSpace(md["query"]), md["threshold"]
	value, err := resource.ParseQuantity(threshold)
	if query == "" || err != nil || value.Sign() <= 0 {
		c.result.lose(field+".metadata", "%s: no query, or the threshold %q is not a number above 0", t, threshold)
		return
	}
	kind := v1alpha1.AverageValue
	switch t.MetricType {
	case "", "AverageValue":
	case "Value":
		kind = v1alpha1.Value
	default:
		c.result.lose(field+".metricType", "%s is not one of the prometheus trigger: %s", t.MetricType, t)
		return
	}
	c.activation = c.activationOf(md["activationThreshold"], field)
	if md["ignoreNullValues"] != "false" {
		c.result.note(field+".metadata.ignoreNullValues", "true: an empty result is 0 for KEDA and scales to the minimum. Here it is missing data, and holds. If the series are absent without load, append: or vector(0)")
	} else {
		c.result.note(field+".metadata.ignoreNullValues", "false: as here, an empty result is missing data")
	}
	c.backendNotes(t, field)
	c.addValueQuery(query, value, kind, field)
	c.activation = nil
}

// activationOf returns the activation of a trigger. KEDA's default is 0.
func (c *converter) activationOf(threshold, field string) *resource.Quantity {
	if threshold == "" {
		return nil
	}
	q, err := resource.ParseQuantity(threshold)
	if err != nil || q.Sign() < 0 {
		c.result.lose(field+".metadata.activationThreshold", "%q is not a number of at least 0", threshold)
		return nil
	}
	return &q
}

// backendNotes is about the settings of the Prometheus server, which the controller has
// once for all objects.
func (c *converter) backendNotes(t *trigger, field string) {
	if a := t.Metadata["serverAddress"]; a != "" {
		c.result.note(field+".metadata.serverAddress", "%s: the controller has one backend for all queries: --prometheus-url, or its own windows", a)
	}
	var credentials []string
	for _, key := range credentialKeys {
		if t.Metadata[key] != "" {
			credentials = append(credentials, key+"="+shown(t.Metadata[key]))
		}
	}
	if t.AuthenticationRef != nil {
		credentials = append(credentials, "authenticationRef "+t.auth())
	}
	if len(credentials) > 0 {
		slices.Sort(credentials)
		c.result.note(field, "%s: the operator sets credentials, TLS and headers once in --prometheus-http-config", strings.Join(credentials, ", "))
	}
	if ns := t.Metadata["namespace"]; ns != "" {
		c.result.note(field+".metadata.namespace", "%s: a query is limited to the namespace of its GPUAutoscaler, unless --query-namespaces trusts it", ns)
	}
}

// resourceTrigger translates a trigger on CPU or memory.
func (c *converter) resourceTrigger(t *trigger, field string) {
	target := hpaTarget{}
	if q, err := resource.ParseQuantity(t.Metadata["value"]); err == nil && (t.MetricType == "AverageValue" || t.Metadata["type"] == "AverageValue") {
		target.AverageValue = &q
	}
	if target.AverageValue == nil {
		target.Type = strings.TrimSpace(cmp.Or(t.MetricType, t.Metadata["type"]) + " " + t.Metadata["value"])
	}
	c.resourceMetric(t.Type, t.Metadata["containerName"], &target, field)
}
