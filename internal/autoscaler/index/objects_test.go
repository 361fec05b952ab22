// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	replicaSets = schema.GroupResource{Group: "apps", Resource: "replicasets"}
	jobs        = schema.GroupResource{Group: "batch", Resource: "jobs"}
	namespaces  = schema.GroupResource{Resource: "namespaces"}
)

// objectServer is an API server for Objects.
type objectServer struct {
	client.Reader
	mu        sync.Mutex
	hangs     bool                                       // watches deliver nothing
	forbidden map[string]bool                            // by kind
	objects   map[string][]client.Object                 // by kind
	handlers  map[string]toolscache.ResourceEventHandler // of the watches, by kind
	lists     int
}

func newObjectServer() *objectServer {
	return &objectServer{forbidden: map[string]bool{}, objects: map[string][]client.Object{}, handlers: map[string]toolscache.ResourceEventHandler{}}
}

func (s *objectServer) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if kind := strings.TrimSuffix(list.GetObjectKind().GroupVersionKind().Kind, "List"); s.forbidden[kind] {
		return apierrors.NewForbidden(jobs, "", fmt.Errorf("no"))
	}
	return nil
}

func (s *objectServer) watch(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	kind := obj.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		_, kind, _ = strings.Cut(fmt.Sprintf("%T", obj), ".")
	}
	s.handlers[kind] = h
	for _, o := range s.objects[kind] {
		h.OnAdd(o, true)
	}
	return nil
}

func objectMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Deployment", "ReplicaSet", "StatefulSet"} {
		m.Add(appsv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	m.Add(batchv1.SchemeGroupVersion.WithKind("Job"), meta.RESTScopeNamespace)
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	return m
}

func deployment(name, uid string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(uid), Labels: map[string]string{"tier": name}},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	}
}

func replicaSet(name, uid, owner string) *appsv1.ReplicaSet {
	isController := true
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ml", Name: name, UID: types.UID(uid),
		OwnerReferences: []metav1.OwnerReference{{UID: "other"}, {Kind: "Deployment", UID: types.UID(owner), Controller: &isController}},
	}}
}

// runObjects runs an index until the test ends.
func runObjects(t testing.TB, s *objectServer) *Objects {
	o := NewObjects(ObjectsConfig{Watch: s.watch, Live: s, Mapper: objectMapper()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { o.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return o
}

func TestObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newObjectServer()
		s.objects["Deployment"] = []client.Object{deployment("web", "d1"), deployment("api", "d2")}
		s.objects["ReplicaSet"] = []client.Object{replicaSet("web-1", "r1", "d1"), replicaSet("web-2", "r2", "d1"), replicaSet("api-1", "r3", "d2")}
		o := runObjects(t, s)
		names := func(selector string) string {
			t.Helper()
			sel, err := labels.Parse(selector)
			if err != nil {
				t.Fatal(err)
			}
			got, err := o.Names(t.Context(), deployments, "ml", sel)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Join(got, " ")
		}
		if got := names(""); got != "api web" {
			t.Errorf("all: %q", got)
		}
		if got := names("tier=web"); got != "web" {
			t.Errorf("of a label: %q", got)
		}
		web, err := o.Get(t.Context(), deployments, "ml", "web")
		if err != nil || web.UID != "d1" || web.Selector.String() != "app=web" {
			t.Fatalf("%+v %v", web, err)
		}
		if gone, err := o.Get(t.Context(), deployments, "other", "web"); gone != nil || err != nil {
			t.Errorf("of another namespace: %v %v", gone, err)
		}
		if got := o.AppendChildren(nil, "ml", "d1"); got != nil {
			t.Errorf("children of a kind that nobody has requested: %v", got)
		}
		if ok, err := o.Has(t.Context(), replicaSets, "ml", "web-1"); !ok || err != nil {
			t.Error(ok, err)
		}
		children := func(uid types.UID) string {
			var out []string
			for _, c := range o.AppendChildren(nil, "ml", uid) {
				out = append(out, c.Name)
			}
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		if got := children("d1"); got != "web-1 web-2" {
			t.Errorf("children: %q", got)
		}
		s.handlers["ReplicaSet"].OnUpdate(nil, replicaSet("web-2", "r2", "d2"))
		s.handlers["ReplicaSet"].OnDelete(toolscache.DeletedFinalStateUnknown{Obj: replicaSet("web-1", "r1", "d1")})
		if got := children("d1") + "|" + children("d2"); got != "|api-1 web-2" {
			t.Errorf("children after a change: %q", got)
		}
		s.handlers["Deployment"].OnDelete(deployment("web", "d1"))
		if got := names(""); got != "api" {
			t.Errorf("after a deletion: %q", got)
		}
		if s.lists != 2 {
			t.Errorf("%d lists for two kinds and a dozen requests", s.lists)
		}
	})
}

func TestObjectsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newObjectServer()
		s.forbidden["Job"] = true
		o := runObjects(t, s)
		check := func(err error, code int32, want string) {
			t.Helper()
			status, ok := err.(apierrors.APIStatus)
			if !ok || status.Status().Code != code || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %d %q", err, code, want)
			}
		}
		_, err := o.Get(t.Context(), jobs, "ml", "train")
		check(err, http.StatusServiceUnavailable, `{apiGroups: ["batch"], resources: [jobs], verbs: [list, watch]}`)
		_, _, err = o.Kind(schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"})
		check(err, http.StatusNotFound, "leaderworkersets.leaderworkerset.x-k8s.io have no metrics: the cluster does not serve this resource")

		// The rule was added.
		s.mu.Lock()
		s.forbidden["Job"] = false
		s.objects["Job"] = []client.Object{&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train"}}}
		s.mu.Unlock()
		time.Sleep(objectRetry)
		synctest.Wait()
		if ok, err := o.Has(t.Context(), jobs, "ml", "train"); !ok || err != nil {
			t.Error(ok, err)
		}
		// A list that hangs: the request ends with its context, or after a while.
		s.mu.Lock()
		s.hangs = true
		s.mu.Unlock()
		began := time.Now()
		_, err = o.Names(t.Context(), namespaces, "", labels.Everything())
		check(err, http.StatusServiceUnavailable, "the namespaces have not been listed yet")
		if waited := time.Since(began); waited != objectSyncWait {
			t.Errorf("waited %s", waited)
		}
	})
}

// The transform keeps what the index needs of the kinds that it watches.
func TestSlimObjects(t *testing.T) {
	slim := kube.Slim(nil)
	rs := replicaSet("web-1", "r1", "d1")
	rs.Annotations = map[string]string{"big": strings.Repeat("x", 1000)}
	rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	rs.Spec.Template.Spec.NodeName = "node-1"
	got, err := slim(rs)
	if err != nil {
		t.Fatal(err)
	}
	kept := got.(*appsv1.ReplicaSet)
	if kept.Annotations != nil || kept.Spec.Template.Spec.NodeName != "" || len(kept.OwnerReferences) != 1 || kept.OwnerReferences[0].UID != "d1" ||
		kept.Spec.Selector == nil || kept.UID != "r1" {
		t.Errorf("%+v", kept)
	}
}

// BenchmarkObjects finds one of 10,000 Deployments of a namespace, and lists all.
func BenchmarkObjects(b *testing.B) {
	s := newObjectServer()
	for i := range 10_000 {
		s.objects["Deployment"] = append(s.objects["Deployment"], deployment(fmt.Sprintf("web-%05d", i), fmt.Sprint(i)))
	}
	o := runObjects(b, s)
	if _, err := o.Has(b.Context(), deployments, "ml", "x"); err != nil { // the first list
		b.Fatal(err)
	}
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			if found, err := o.Has(b.Context(), deployments, "ml", "web-05000"); err != nil || !found {
				b.Fatal(found, err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if names, err := o.Names(b.Context(), deployments, "ml", labels.Everything()); err != nil || len(names) != 10_000 {
				b.Fatal(len(names), err)
			}
		}
	})
}
