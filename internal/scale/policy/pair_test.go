// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"
)

func TestPairAndIdle(t *testing.T) {
	f := func(spec, problem string) Compiled {
		t.Helper()
		c, err := Compile(autoscaler(t, minimal+spec))
		if problem == "" && err != nil || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%s: %v, want %q", spec, err, problem)
		}
		return c
	}
	if c := f(`pair: {with: decode, ratio: {min: 250m, max: "2"}}`, ""); c.Pair != (Pair{"decode", 0.25, 2}) || c.Pair.String() != "0.25 to 2 for 1" {
		t.Errorf("pair %+v, %s", c.Pair, c.Pair)
	}
	f(`pair: {with: decode, ratio: {max: "2"}}`, "")
	f(`pair: {with: decode, ratio: {min: "2"}}`, "")
	f(`pair: {with: decode, ratio: {}}`, "spec.pair.ratio")
	f(`pair: {with: decode, ratio: {min: "2", max: "1"}}`, "spec.pair.ratio.min")
	f(`pair: {with: decode, ratio: {max: "0"}}`, "spec.pair.ratio.max")
	f(`pair: {with: decode, ratio: {min: "-1"}}`, "spec.pair.ratio.min")
	f(`pair: {with: "", ratio: {min: "1"}}`, "spec.pair.with")
	self := autoscaler(t, minimal+`pair: {with: web, ratio: {min: "1"}}`)
	self.Name = "web"
	if _, err := Compile(self); err == nil || !strings.Contains(err.Error(), "must name another") {
		t.Errorf("itself: %v", err)
	}

	if c := f("minReplicas: 2\nidle: {after: 2h, to: 1}", ""); c.Policy.Idle.After != 2*time.Hour || c.Policy.Idle.To != 1 {
		t.Errorf("idle %+v", c.Policy.Idle)
	}
	f("minReplicas: 2\nidle: {after: 2h, to: 3}", "spec.idle.to")
	f("idle: {after: 2h, to: -1}", "spec.idle.to")
	f("idle: {after: 30s}", "spec.idle.after")
	f("idle: {after: 721h}", "spec.idle.after")
	f("onDelete: Restore", "")
	f("onDelete: Orphan", "spec.onDelete")
}
