// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
)

// noted is a Notices with its Events, as OBJECT REASON NOTE.
type noted struct {
	*Notices
	now    time.Time
	events []string
}

func newNoted() *noted {
	n := &noted{now: time.Unix(1_800_000_000, 0)}
	n.Notices = NewNotices(func(about corev1.ObjectReference, kind, reason, action, note string) {
		n.events = append(n.events, strings.Join([]string{about.Namespace + "/" + about.Name, kind, reason, action, note}, " "))
	})
	return n
}

// after lets time pass, takes the problems, and returns their Events.
func (n *noted) after(d time.Duration, list ...Notice) (events []string) {
	n.now, n.events = n.now.Add(d), nil
	n.Update(n.now, list)
	return n.events
}

func notice(namespace, name, note string) Notice {
	return Notice{About: corev1.ObjectReference{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}, Reason: "RuleFailed", Note: note}
}

func TestNotices(t *testing.T) {
	n := newNoted()
	f := func(got []string, want ...string) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	a, b := notice("team-a", "x", "many-to-many"), notice("team-a", "x", "too many series")
	const first, second = "team-a/x Warning RuleFailed Evaluate many-to-many", "team-a/x Warning RuleFailed Evaluate too many series"
	f(n.after(0))
	f(n.after(time.Second, a), first)
	f(n.after(time.Second, a))            // it lasts
	f(n.after(time.Second))               // it works
	f(n.after(time.Second, a))            // and fails again
	f(n.after(time.Second, b))            // another text, too early
	f(n.after(time.Minute, b), second)    // which is told when it still holds
	f(n.after(30*time.Minute, b))         // it lasts
	f(n.after(36*time.Minute, b), second) // after the first Event's time
	f(n.after(0, notice("team-a", "y", "many-to-many")), "team-a/y Warning RuleFailed Evaluate many-to-many")
}

// A text that is another one at each look gets fewer and fewer Events.
func TestNoticesOfChangingTexts(t *testing.T) {
	n := newNoted()
	events := 0
	for i := range 12 * 60 { // an hour
		events += len(n.after(5*time.Second, notice("a", "x", fmt.Sprint(i))))
	}
	if events != 6 { // at 0, 1, 3, 7, 15 and 31 minutes
		t.Errorf("%d Events in an hour", events)
	}
}

// A tenant with many wrong objects gets few Events, and delays nobody else's.
func TestNoticesOfOneNamespace(t *testing.T) {
	n := newNoted()
	var list []Notice
	for i := range 1000 {
		list = append(list, notice("loud", fmt.Sprintf("rule-%04d", i), fmt.Sprint(i)))
	}
	list = append(list, notice("quiet", "rule", "wrong"))
	got := n.after(0, list...)
	if len(got) != notesPerNamespace+1 || !strings.HasPrefix(got[len(got)-1], "quiet/rule ") {
		t.Errorf("%d Events, the last is %s", len(got), got[len(got)-1])
	}
	if got := n.after(noteEvery, list...); len(got) != notesPerNamespace || !strings.HasPrefix(got[0], "loud/rule-0010 ") {
		t.Errorf("a minute later: %q", got)
	}
	// New objects with the same name are no way around the bound.
	for i := range list {
		list[i].About.UID = types.UID(fmt.Sprint("new", i))
	}
	if got := n.after(time.Second, list[:1000]...); len(got) != 0 {
		t.Errorf("for recreated objects: %q", got)
	}
	all := 0
	for i := range 1000 {
		all += len(n.after(10*time.Millisecond, notice(fmt.Sprint("ns-", i), "x", "wrong")))
	}
	if all > notesInAll {
		t.Errorf("%d Events of many namespaces within a minute, at most %d are allowed", all, notesInAll)
	}
}

// namedEvents refuses Events as an API server does: with names that exist or are wrong.
type namedEvents struct {
	eventsv1client.EventInterface
	mu    sync.Mutex
	names []string
}

func (s *namedEvents) Events(string) eventsv1client.EventInterface { return s }

func (s *namedEvents) Create(_ context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := validation.IsDNS1123Subdomain(e.Name); len(why) > 0 {
		return nil, apierrors.NewBadRequest(why[0])
	}
	for _, name := range s.names {
		if name == e.Name {
			return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, name)
		}
	}
	s.names = append(s.names, e.Name)
	return e, nil
}

// Equal Events of two replicas are one. The name of an object may be as long as that of
// its Event.
func TestEventOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &namedEvents{}
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		var lost uint64
		for range 2 {
			r := NewRecorder(api, "test", "test", slog.New(slog.DiscardHandler))
			go r.Run(ctx)
			for _, name := range []string{"x", strings.Repeat("y", 253), strings.Repeat("z.", 126) + "z"} {
				about := corev1.ObjectReference{Namespace: "ns", Name: name, UID: "1"}
				r.EventOnce(about, corev1.EventTypeWarning, "RuleFailed", "Evaluate", "many-to-many")
				r.EventOnce(about, corev1.EventTypeWarning, "RuleFailed", "Evaluate", "other")
			}
			r.Event(corev1.ObjectReference{Namespace: "ns", Name: strings.Repeat("z.", 126) + "z"}, corev1.EventTypeNormal, "Scaled", "Scale", "")
			synctest.Wait()
			time.Sleep(time.Millisecond) // so that the names of Event differ
			lost += r.Dropped()
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		if len(api.names) != 6+2 || lost != 0 {
			t.Errorf("%d Events, want 8; %d were lost", len(api.names), lost)
		}
	})
}
