// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// cluster is an API server with the three controllers that matter: of HorizontalPodAutoscalers, of ScaledObjects, and
// of GPUAutoscalers. Each acts on a cache that lags, and for a while on what it has read from the cache. The cluster
// notes when two of them may write replicas.
type cluster struct {
	mu      sync.Mutex
	version int
	objects map[string]*unstructured.Unstructured // by resource/name
	past    []snapshot

	calls          []string
	killAt         int    // the number of the call in which the client is killed; 0: none
	killsChange    bool   // the number is among the calls that change something
	writes         int    // these calls
	killOn         string // or the call
	applied        bool   // the call is applied before
	kill           context.CancelFunc
	refuses        func(method, path string, dry bool) error // nil: nothing
	replicas       int64
	desired        func(replicas int64) int64 // of the GPUAutoscaler
	ready          bool
	silent         string // the message of SignalsReadable; empty: none
	controllerDead bool
	ownedHPA       time.Time // when the GPUAutoscaler last had a HorizontalPodAutoscaler

	lags    map[string]time.Duration // of the caches
	syncs   map[string]*sync1
	writers []string // who may write now
	both    []string // moments at which two might write
	idle    time.Duration
}

// sync1 is a sync that runs: until when, and on what.
type sync1 struct {
	until time.Time
	seen  map[string]*unstructured.Unstructured
}

type snapshot struct {
	at      time.Time
	objects map[string]*unstructured.Unstructured
}

const (
	tick       = 200 * time.Millisecond
	syncPeriod = 15 * time.Second // of the HorizontalPodAutoscaler's controller
)

func newCluster(seed uint64) *cluster {
	r := rand.New(rand.NewPCG(seed, 0))
	lag := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	return &cluster{
		objects: map[string]*unstructured.Unstructured{}, syncs: map[string]*sync1{}, replicas: 4, ready: true,
		desired: func(n int64) int64 { return n },
		lags: map[string]time.Duration{
			"hpa": lag(2 * time.Second), "keda": lag(2 * time.Second), "ours": lag(2 * time.Second),
			"hpa sync": lag(5 * time.Second), "ours sync": lag(time.Second), "hpa phase": lag(syncPeriod),
		},
	}
}

// run runs the controllers until ctx is done.
func (c *cluster) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			c.mu.Lock()
			c.remember(now)
			c.keda(now)
			c.hpas(now, began)
			c.ours(now)
			c.judge(now)
			c.mu.Unlock()
		}
	}
}

func (c *cluster) remember(now time.Time) {
	s := snapshot{now, map[string]*unstructured.Unstructured{}}
	maps.Copy(s.objects, c.objects) // objects are replaced, not changed
	c.past = append(c.past, s)
	if len(c.past) > 20 {
		c.past = c.past[1:]
	}
}

// cache is what a controller sees.
func (c *cluster) cache(who string, now time.Time) map[string]*unstructured.Unstructured {
	out := c.past[0].objects
	for _, s := range c.past {
		if !s.at.After(now.Add(-c.lags[who])) {
			out = s.objects
		}
	}
	return out
}

// scalesHPA is the HorizontalPodAutoscaler that sets replicas, of those that a controller has seen.
func scalesHPA(objects map[string]*unstructured.Unstructured) bool {
	for k, u := range objects {
		if strings.HasPrefix(k, "horizontalpodautoscalers/") && stopMetricOf(u) == "" {
			return true
		}
	}
	return false
}

func scalesKEDA(objects map[string]*unstructured.Unstructured) bool {
	u := objects["scaledobjects/chat"]
	return u != nil && !isPaused(u)
}

func scalesOurs(objects map[string]*unstructured.Unstructured) bool {
	u := objects["gpuautoscalers/chat"]
	if u == nil {
		return false
	}
	mode, _, _ := unstructured.NestedString(u.Object, "spec", "actuation")
	return mode == "Scale" && !hasRival(objects)
}

// hasRival is the rule of the controller: package target.
func hasRival(objects map[string]*unstructured.Unstructured) bool {
	for k, u := range objects {
		if strings.HasPrefix(k, "horizontalpodautoscalers/") {
			return true
		}
		if strings.HasPrefix(k, "scaledobjects/") && (!isPaused(u) || hasSeenStop(u) != "") {
			return true
		}
	}
	return false
}

func (c *cluster) judge(now time.Time) {
	c.writers = nil
	add := func(who string, writes bool) {
		if writes {
			c.writers = append(c.writers, who)
		}
	}
	running := func(who string, writes func(map[string]*unstructured.Unstructured) bool) bool {
		s := c.syncs[who]
		return s != nil && !now.After(s.until) && writes(s.seen)
	}
	add("HPA", scalesHPA(c.cache("hpa", now)) || running("hpa", scalesHPA))
	if len(c.writers) == 0 { // KEDA and its HPA are one writer
		add("KEDA", scalesKEDA(c.cache("keda", now)))
	}
	add("GPUAutoscaler", !c.controllerDead && (scalesOurs(c.cache("ours", now)) || running("ours", scalesOurs)))
	if len(c.writers) > 1 {
		c.both = append(c.both, fmt.Sprintf("%v: %v, after %v", now, c.writers, c.calls[max(0, len(c.calls)-4):]))
	}
	if len(c.writers) == 0 {
		c.idle += tick
	}
}

// hpas syncs all HorizontalPodAutoscalers once a period.
func (c *cluster) hpas(now, began time.Time) {
	s := c.syncs["hpa"]
	if s == nil {
		if since := now.Sub(began) + c.lags["hpa phase"]; since%syncPeriod < tick {
			c.syncs["hpa"] = &sync1{now.Add(c.lags["hpa sync"]), c.cache("hpa", now)}
		}
		return
	}
	if now.Before(s.until) {
		return
	}
	delete(c.syncs, "hpa")
	for k, seen := range s.seen {
		u := c.objects[k]
		if !strings.HasPrefix(k, "horizontalpodautoscalers/") || u == nil || u.GetUID() != seen.GetUID() {
			continue
		}
		message := "the HPA was able to successfully calculate a replica count from pods metric requests"
		if m := stopMetricOf(seen); m != "" {
			message = "the HPA was unable to compute the replica count: unable to get external metric llm/" + m + "/nil: the server could not find the requested resource"
		}
		c.setStatus(k, map[string]any{"conditions": []any{map[string]any{"type": "ScalingActive", "status": "True", "message": message}}})
	}
}

// keda pauses a ScaledObject, or makes its HorizontalPodAutoscaler.
func (c *cluster) keda(now time.Time) {
	seen, u := c.cache("keda", now)["scaledobjects/chat"], c.objects["scaledobjects/chat"]
	if seen == nil || u == nil || c.lags["keda"] > time.Minute {
		return
	}
	const its = "horizontalpodautoscalers/keda-hpa-chat"
	status, hasHPA := "False", c.objects[its] != nil
	if isPaused(seen) {
		status = "True"
	}
	if conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions"); len(conditions) == 0 || conditions[0].(map[string]any)["status"] != status {
		c.setStatus("scaledobjects/chat", map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": status}}})
		return // it deletes the HorizontalPodAutoscaler after that
	}
	switch {
	case isPaused(seen) && hasHPA:
		delete(c.objects, its)
	case !isPaused(seen) && !hasHPA:
		h := hpa("keda-hpa-chat")
		h.SetOwnerReferences([]metav1.OwnerReference{{Kind: kindScaledObject, Name: "chat", UID: u.GetUID()}})
		c.put(its, h)
	}
}

// ours decides about the GPUAutoscaler.
func (c *cluster) ours(now time.Time) {
	if c.controllerDead {
		return
	}
	s := c.syncs["ours"]
	if s == nil {
		c.syncs["ours"] = &sync1{now.Add(c.lags["ours sync"]), c.cache("ours", now)}
		return
	}
	if now.Before(s.until) {
		return
	}
	delete(c.syncs, "ours")
	seen, u := s.seen["gpuautoscalers/chat"], c.objects["gpuautoscalers/chat"]
	if seen == nil || u == nil || seen.GetUID() != u.GetUID() {
		return
	}
	mode, _, _ := unstructured.NestedString(seen.Object, "spec", "actuation")
	able := mode == "Advise" || !hasRival(s.seen)
	condition := func(kind string, ok bool) any {
		status, reason := "True", "Able"
		if !ok {
			status, reason = "False", "OwnedByAnother"
		}
		return map[string]any{
			"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": seen.GetGeneration(),
			"lastTransitionTime": now.UTC().Format(time.RFC3339),
		}
	}
	status := map[string]any{
		"observedGeneration": seen.GetGeneration(), "currentReplicas": c.replicas, "desiredReplicas": c.desired(c.replicas), "servingReplicas": c.replicas, "startingReplicas": int64(0),
		"conditions":   []any{condition("Ready", able && c.ready), condition("AbleToScale", able)},
		"lastDecision": map[string]any{"time": now.UTC().Format("2006-01-02T15:04:05.000000Z07:00"), "reason": "Signal", "message": "x"},
	}
	if c.silent != "" {
		signals := condition("SignalsReadable", false).(map[string]any)
		signals["message"] = c.silent
		status["conditions"] = append(status["conditions"].([]any), signals)
	}
	if mode == "HPA" {
		c.ownedHPA = now
		status["hpa"] = map[string]any{"name": "gpupilot-chat", "uid": "u"}
	}
	c.setStatus("gpuautoscalers/chat", status)
}

func (c *cluster) setStatus(key string, status map[string]any) {
	u := c.objects[key].DeepCopy()
	u.Object["status"] = status
	c.bump(u)
	c.objects[key] = u
}

func (c *cluster) bump(u *unstructured.Unstructured) {
	c.version++
	u.SetResourceVersion(fmt.Sprint(c.version))
}

// put creates an object.
func (c *cluster) put(key string, u *unstructured.Unstructured) {
	u = u.DeepCopy()
	c.bump(u)
	u.SetUID(types.UID("uid-" + u.GetResourceVersion()))
	u.SetGeneration(1)
	u.SetCreationTimestamp(metav1.Now())
	c.objects[key] = u
}

// Send implements API.
func (c *cluster) Send(ctx context.Context, method string, query url.Values, body, into any, path ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	call, b := method+" "+strings.Join(path[5:], "/"), text(body)
	if dry := query.Get("dryRun") != "" || method == http.MethodDelete && strings.Contains(b, `"dryRun"`); dry {
		call += " (dry run)"
	}
	c.calls = append(c.calls, call)
	if method != http.MethodGet {
		c.writes++
	}
	kills := call == c.killOn
	if c.killsChange {
		kills = kills || method != http.MethodGet && c.writes == c.killAt
	} else {
		kills = kills || len(c.calls) == c.killAt
	}
	if kills && !c.applied {
		c.kill()
		return ctx.Err()
	}
	out, err := c.serve(method, query, body, path)
	if kills {
		c.kill()
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	answer, err := json.Marshal(out)
	if err == nil {
		err = json.Unmarshal(answer, into)
	}
	return err
}

func (c *cluster) serve(method string, query url.Values, body any, path []string) (any, error) {
	if path[3] != "namespaces" || path[4] != "llm" {
		return nil, fmt.Errorf("unexpected path %q", path)
	}
	resource := schema.GroupResource{Group: path[1], Resource: path[5]}
	var in map[string]any
	b, err := json.Marshal(body)
	if err == nil {
		err = json.Unmarshal(b, &in)
	}
	if err != nil {
		return nil, err
	}
	dry := query.Get("dryRun") == "All"
	if method == http.MethodDelete { // the API server takes the options from the body only
		o, _ := in["dryRun"].([]any)
		dry = len(o) > 0
	}
	if c.refuses != nil {
		if err := c.refuses(method, strings.Join(path[5:], "/"), dry); err != nil {
			return nil, err
		}
	}
	if len(path) == 6 {
		return c.collection(method, dry, in, resource)
	}
	key := path[5] + "/" + path[6]
	u := c.objects[key]
	if u == nil {
		return nil, apierrors.NewNotFound(resource, path[6])
	}
	version := u.GetResourceVersion()
	conflict := func(given any) error {
		if given != nil && given != version {
			return apierrors.NewConflict(resource, path[6], fmt.Errorf("the version is %s, not %v", version, given))
		}
		return nil
	}
	switch method {
	case http.MethodGet:
		return u, nil
	case http.MethodDelete:
		p, _ := in["preconditions"].(map[string]any)
		if err := conflict(p["resourceVersion"]); err != nil || dry {
			return map[string]any{}, err
		}
		delete(c.objects, key)
		return map[string]any{}, nil
	case http.MethodPut, http.MethodPatch:
		meta, _ := in["metadata"].(map[string]any)
		if err := conflict(meta["resourceVersion"]); err != nil {
			return nil, err
		}
		return c.update(key, method, u, in, dry), nil
	}
	return nil, fmt.Errorf("unexpected %s", method)
}

func (c *cluster) collection(method string, dry bool, in map[string]any, resource schema.GroupResource) (any, error) {
	if method == http.MethodGet {
		list := map[string]any{"kind": "List", "apiVersion": "v1"}
		items := []any{}
		for k, u := range c.objects {
			if strings.HasPrefix(k, resource.Resource+"/") {
				items = append(items, u.Object)
			}
		}
		list["items"] = items
		return list, nil
	}
	u := &unstructured.Unstructured{Object: in}
	if u.GetGenerateName() != "" {
		u.SetName(u.GetGenerateName() + "x")
	}
	if resource.Resource == "gpuautoscalers" {
		spec := in["spec"].(map[string]any)
		for k, v := range map[string]any{"actuation": "Scale", "missingData": "Hold", "minReplicas": float64(1)} {
			if spec[k] == nil {
				spec[k] = v
			}
		}
	}
	key := resource.Resource + "/" + u.GetName()
	if c.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(resource, u.GetName())
	}
	if !dry {
		c.put(key, u)
	}
	return u, nil
}

func (c *cluster) update(key, method string, u *unstructured.Unstructured, in map[string]any, dry bool) any {
	next := &unstructured.Unstructured{Object: in}
	if method == http.MethodPatch {
		next = u.DeepCopy()
		merge(next.Object, in)
	}
	if next.Object["status"] = u.Object["status"]; u.Object["status"] == nil {
		delete(next.Object, "status")
	}
	if text(next.Object["spec"]) != text(u.Object["spec"]) {
		next.SetGeneration(u.GetGeneration() + 1)
	}
	if !dry {
		c.bump(next)
		c.objects[key] = next
	}
	return next
}

// merge applies a merge patch.
func merge(to, patch map[string]any) {
	for k, v := range patch {
		if v == nil {
			delete(to, k)
			continue
		}
		inner, ok := v.(map[string]any)
		if !ok {
			to[k] = v
			continue
		}
		if _, ok := to[k].(map[string]any); !ok {
			to[k] = map[string]any{}
		}
		merge(to[k].(map[string]any), inner)
	}
}

// nobody is how long no autoscaler set the replicas.
func (c *cluster) nobody() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle
}

// set changes how the cluster behaves.
func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// object is a copy of an object; nil: there is none.
func (c *cluster) object(key string) *unstructured.Unstructured {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := c.objects[key]; u != nil {
		return u.DeepCopy()
	}
	return nil
}

// changes are the calls that change something, in order.
func (c *cluster) changes() []string {
	return slices.DeleteFunc(slices.Clone(c.calls), func(s string) bool { return strings.HasPrefix(s, "GET") || strings.HasSuffix(s, "(dry run)") })
}

func parse(text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(err)
	}
	return u
}

func hpa(name string) *unstructured.Unstructured {
	u := parse(`{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"namespace": "llm", "labels": {"team": "a"},
		"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"spec\":{}}\n", "note": "ours"}},
		"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "minReplicas": 2, "maxReplicas": 6,
		"metrics": [{"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "6"}}}],
		"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}}}}`)
	u.SetName(name)
	return u
}

func scaledObject() *unstructured.Unstructured {
	return parse(`{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"namespace": "llm", "name": "chat", "annotations": {"note": "ours"}, "finalizers": ["finalizer.keda.sh"]},
		"spec": {"scaleTargetRef": {"name": "chat"}, "maxReplicaCount": 6, "triggers": [{"type": "prometheus", "metadata": {"query": "q", "threshold": "6"}}]}}`)
}
