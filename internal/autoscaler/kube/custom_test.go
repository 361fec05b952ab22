// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
)

// event is a line of a watch about an object.
func event(kind watch.EventType, name, labels, spec string) []byte {
	return fmt.Appendf(nil, `{"type":%q,"object":{"apiVersion":"a/v1","kind":"K","metadata":{"namespace":"ns","name":%q,"uid":"u","generation":3,"annotations":{"a":"b"},"labels":%s},"spec":%s,"status":{"x":1}}}`, kind, name, labels, spec)
}

// Of the annotations, those by which KEDA pauses are kept, in few bytes.
func TestSlimKeepsPauses(t *testing.T) {
	x := &custom{ObjectMeta: metav1.ObjectMeta{Name: "chat", Annotations: map[string]string{
		target.PausedAnnotation: "true", target.PausedReplicasAnnotation: strings.Repeat("9", 1000), "note": "x",
	}}}
	want := map[string]string{target.PausedAnnotation: "true", target.PausedReplicasAnnotation: strings.Repeat("9", maxAnnotation)}
	if diff := cmp.Diff(want, slimCustom(x, maxSpec).decoded().GetAnnotations()); diff != "" {
		t.Error(diff)
	}
}

// A watch of a kind without a Go type passes the objects that are read, and keeps nothing
// of them: of a deleted object the handler gets the names.
func TestCustomStore(t *testing.T) {
	var got []string
	tell := func(what string, obj any) {
		u := obj.(*unstructured.Unstructured)
		spec, _ := json.Marshal(u.Object["spec"])
		got = append(got, fmt.Sprintf("%s %s/%s %s %v %d", what, u.GetNamespace(), u.GetName(), spec, u.GetLabels(), u.GetGeneration()))
	}
	c := &Clients{}
	s := &customStore{known: map[types.NamespacedName]*custom{}, most: c.maxSpec, listed: make(chan struct{}), handler: toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { tell("add", obj) }, UpdateFunc: func(_, obj any) { tell("update", obj) }, DeleteFunc: func(obj any) { tell("delete", obj) },
	}}
	object := func(name, labels, spec string) any {
		return eventOf(t, c, event(watch.Added, name, labels, spec)).Object
	}
	want := func(lines ...string) {
		t.Helper()
		if diff := cmp.Diff(lines, got); diff != "" {
			t.Error(diff)
		}
		got = nil
	}
	if err := s.Replace([]any{object("a", `{"l":"1"}`, `{"n":1}`), object("b", "{}", "[1]")}, "1"); err != nil {
		t.Fatal(err)
	}
	<-s.listed
	want(`add ns/a {"n":1} map[l:1] 3`, `add ns/b [1] map[] 3`)
	large := fmt.Sprintf(`{"n":%q}`, strings.Repeat("x", maxSpec))
	many := "{"
	for i := range maxLabels + 1 {
		many += fmt.Sprintf("%q:\"\",", fmt.Sprint("l", i))
	}
	for _, x := range []any{object("a", "{}", large), object("c", many+`"z":""}`, `{}`)} {
		if err := s.Update(x); err != nil {
			t.Fatal(err)
		}
	}
	want(fmt.Sprintf(`update ns/a "not read: it has %d bytes of JSON, at most %d are read" map[] 3`, len(large), maxSpec), `add ns/c {} map[gpupilot.dev/unread-labels:true] 3`)
	if err := s.Delete(object("b", "{}", "{}")); err != nil {
		t.Fatal(err)
	}
	want(`delete ns/b null map[] 0`)
	if err := s.Replace([]any{object("d", "{}", "{}")}, "2"); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	want(`add ns/d {} map[] 3`, `delete ns/a null map[] 0`, `delete ns/c null map[] 0`)
	for _, x := range s.known {
		if x.Spec != nil || x.Labels != nil {
			t.Errorf("kept: %+v", x)
		}
	}
}

// eventOf decodes a line of a watch of a kind without a Go type.
func eventOf(t *testing.T, c *Clients, line []byte) watch.Event {
	t.Helper()
	c.decoder = schemeDecoder()
	e, err := c.nextEvent(t.Context(), bufio.NewReader(bytes.NewReader(append(line, '\n'))), c.decodeCustom)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The lines of a watch that are no objects are what the API server says, or errors.
func TestLinesOfAWatch(t *testing.T) {
	c := &Clients{trusted: func(namespace string) bool { return namespace == "ns" }}
	e := eventOf(t, c, []byte(`{"type":"ERROR","object":{"apiVersion":"v1","kind":"Status","code":410,"reason":"Expired"}}`))
	if s, ok := e.Object.(*metav1.Status); !ok || e.Type != watch.Error || s.Code != 410 {
		t.Errorf("%+v", e)
	}
	e = eventOf(t, c, []byte(`{"type":"BOOKMARK","object":{"kind":"K","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}`))
	if x, ok := e.Object.(*custom); !ok || e.Type != watch.Bookmark || x.ResourceVersion != "7" || x.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("%+v", e)
	}
	for _, line := range []string{"{", `{"type":"ERROR","object":{}}`, `{"type":"ADDED","object":[]}`, `{"type":"ADDED"}`} {
		if e = eventOf(t, c, []byte(line)); e.Type != watch.Error {
			t.Errorf("%s: %+v", line, e)
		}
	}
	large := fmt.Sprintf(`{"n":%q}`, strings.Repeat("x", maxSpec))
	if x := eventOf(t, c, event(watch.Modified, "a", "{}", large)).Object.(*custom); len(x.Spec) != len(large) {
		t.Errorf("of a trusted namespace %d bytes are read", len(x.Spec))
	}
}
