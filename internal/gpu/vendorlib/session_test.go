// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"strings"
	"testing"
	"time"
)

func TestTheLastCallEndsAClosedSession(t *testing.T) {
	ended := 0
	s := NewSession("NVML", func() { ended++ })
	first, second := s.Enter(), s.Enter()
	if !first || !second || s.Inside() != 2 {
		t.Fatal("calls are refused")
	}
	s.Leave()
	err := s.shut(time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "hang in NVML") || ended != 0 || s.Enter() {
		t.Errorf("ended %d with a call inside, or took another call: %v", ended, err)
	}
	if s.Leave(); ended != 1 {
		t.Errorf("ended %d times", ended)
	}
	idle := NewSession("NVML", func() { ended++ })
	if idle.Shut() != nil || ended != 2 {
		t.Error("a session without calls does not end at once")
	}
}

func TestGuard(t *testing.T) {
	var g Guard
	now := time.Unix(1000, 0)
	freed := 0
	if !g.Begin(now) || g.Elapsed(now.Add(time.Second)) != time.Second {
		t.Error("no read in progress")
	}
	if g.Release(func() { freed++ }); freed != 0 {
		t.Error("freed during a read")
	}
	if g.End(); g.Elapsed(now.Add(time.Second)) != 0 {
		t.Error("a read in progress after its end")
	}
	if g.Release(func() { freed++ }); freed != 1 || g.Begin(now) {
		t.Errorf("freed %d times, or read afterwards", freed)
	}
}

func TestRefusedLabelsAreAskedForAgain(t *testing.T) {
	var l Labels
	asked := 0
	now := time.Unix(1000, 0)
	text := func(after time.Duration, answer string, refused bool) string {
		return l.Text(1, now.Add(after), func() (string, bool) { asked++; return answer, refused })
	}
	if text(0, "", false) != "" || text(0, "", true) != "" || asked != 2 {
		t.Errorf("asked %d times, want 2: no answer, then a refusal", asked)
	}
	if text(RetryUnsupported-1, "a", false) != "" || asked != 2 {
		t.Error("asked again too early")
	}
	if text(RetryUnsupported, "a", false) != "a" || text(time.Hour, "b", false) != "a" || asked != 3 {
		t.Errorf("asked %d times, want 3: a known label is not asked for again", asked)
	}
}
