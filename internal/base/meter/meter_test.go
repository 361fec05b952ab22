// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestFunc(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(Func(func(to Sink) {
		to.Counter("asked_total", "Questions.", 3, "by", "a", "at", "noon")
		to.Counter("asked_total", "Questions.", 4, "by", "b", "at", "noon")
		to.Gauge("open", "Questions without an answer.", 0.5)
		to.Bool("up", "Whether it answers.", true)
		to.Bool("late", "Whether it is late.", false)
	}))
	want := `# HELP asked_total Questions.
# TYPE asked_total counter
asked_total{at="noon",by="a"} 3
asked_total{at="noon",by="b"} 4
# HELP late Whether it is late.
# TYPE late gauge
late 0
# HELP open Questions without an answer.
# TYPE open gauge
open 0.5
# HELP up Whether it answers.
# TYPE up gauge
up 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
