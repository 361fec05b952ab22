// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/gpupilot/gpupilot/internal/scale"
)

const combined = `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 40
signals:
- {name: queue, query: {promql: sum(waiting)}, target: {value: "5"}}
- {name: gpu-use, gpu: {metric: Utilization}, target: {value: "60"}}
`

// formula compiles the object with a formula.
func formula(t *testing.T, text string) (scale.Policy, error) {
	t.Helper()
	a := autoscaler(t, combined)
	a.Spec.Formula = text
	c, err := Compile(a)
	return c.Policy, err
}

func TestFormulas(t *testing.T) {
	f := func(text string, queue, use, want float64) {
		t.Helper()
		p, err := formula(t, text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var values []float64
		for _, term := range p.Formula.Terms {
			values = append(values, map[string]float64{
				"queue.value": 10 * queue, "queue.replicas": queue, "gpu_use.value": 10 * use, "gpu_use.replicas": use,
			}[term.Name])
		}
		if got, err := p.Formula.Evaluate(values); err != nil || got != want {
			t.Errorf("%s with %g and %g: %g (%v), want %g", text, queue, use, got, err, want)
		}
	}
	f("queue.replicas + gpu_use.replicas", 2.5, 1.25, 3.75)
	f("max(queue.replicas, gpu_use.replicas)", 2.5, 4, 4)
	f("min(queue.replicas, gpu_use.replicas, 2)", 2.5, 4, 2)
	f("gpu_use.value > 50 ? queue.replicas : 1", 3, 6, 3)
	f("gpu_use.value > 50 ? queue.replicas : 1", 3, 4, 1)
	f("queue.replicas * 3 / 2 - gpu_use.replicas", 3, 1, 3.5)
	f("(queue.value + gpu_use.value) / 5", 1, 2, 6) // a whole number is not rounded
	f("\n  queue.value / 60\n+ gpu_use.value / 60.0", 6, 6, 2)
}

func TestFormulasAreRefused(t *testing.T) {
	f := func(text, says string) {
		t.Helper()
		if _, err := formula(t, text); err == nil || !strings.Contains(err.Error(), "spec.formula") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	f("queue.replicas +", "column 17: ")
	f("queue.size + gpu_use.replicas", "undeclared reference to 'queue'")
	f("cache.replicas + 1", "its variables are gpu_use.replicas, gpu_use.value, queue.replicas, queue.value")
	f("gpu-use.replicas + queue.replicas", "gpu_use.replicas")
	f("queue.replicas > gpu_use.replicas", "is a bool, not a number of replicas")
	f("1 + 2", "uses no signal")
	f("queue.replicas", "does not use signal gpu-use, which would have no effect")
	f("[1, 2].map(x, x * queue.value)[0] + gpu_use.value", "has a list")
	f("queue.replicas + "+strings.Repeat(" ", 1020)+"gpu_use.value", "")
	f(`"x".matches("x{0,999}") ? queue.value : gpu_use.value`, "undeclared reference to 'matches'")
	f(`double("1") + queue.value + gpu_use.value`, "undeclared reference to 'double'")
	f(strings.Repeat("(", 500)+"queue.replicas"+strings.Repeat(")", 500), "")

	a := autoscaler(t, strings.ReplaceAll(combined, "name: queue, ", ""))
	a.Spec.Formula = "gpu_use.replicas"
	if _, err := Compile(a); err == nil || !strings.Contains(err.Error(), "spec.signals[0], which has no name") {
		t.Errorf("a signal without a name: %v", err)
	}
	a = autoscaler(t, strings.ReplaceAll(combined, "name: queue, ", "name: queue, fallback: Ignore, "))
	a.Spec.Formula = "gpu_use.replicas + queue.replicas"
	if _, err := Compile(a); err == nil || !strings.Contains(err.Error(), "whose fallback is Ignore") {
		t.Errorf("a signal that is ignored: %v", err)
	}
}

// A formula may use the entry of a preset, whose signals count together.
func TestFormulaOfAPreset(t *testing.T) {
	a := autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
formula: 1.5 * llm.replicas
signals:
- {name: llm, preset: vllm}
`)
	c, err := Compile(a)
	if err != nil {
		t.Fatal(err)
	}
	if terms := c.Policy.Formula.Terms; len(terms) != 1 || len(terms[0].Signals) != len(c.Policy.Signals) || len(terms[0].Signals) < 2 {
		t.Errorf("%d signals, terms %+v", len(c.Policy.Signals), terms)
	}
}

// Whatever a tenant writes is refused, or evaluates to a number or an error. formulaCost bounds its work; BenchmarkFormula has its time.
func FuzzFormula(f *testing.F) {
	for _, text := range []string{
		"queue.replicas + gpu_use.replicas", "queue.value / gpu_use.value", "max(queue.value, min(gpu_use.value, 3))",
		"queue.value > 1 ? gpu_use.value : -queue.value", "double(string(queue.value)) + gpu_use.value", `"a".matches("(a+)+$") ? queue.value : gpu_use.value`,
		"queue.value % 2", "int(queue.value) / int(gpu_use.value)", "[queue.value][int(gpu_use.value)]", "{1: queue.value}[gpu_use.value]",
		`timestamp("2026-01-01T00:00:00Z").getHours() + queue.value + gpu_use.value`,
	} {
		f.Add(text, 1.5, 0.0)
	}
	f.Fuzz(func(t *testing.T, text string, queue, use float64) {
		p, err := formula(t, text)
		if err != nil || p.Formula == nil {
			return
		}
		values := make([]float64, len(p.Formula.Terms))
		for i := range values {
			values[i] = []float64{queue, use, math.Inf(1), 0}[i%4]
		}
		began := time.Now()
		x, err := p.Formula.Evaluate(values)
		if took := time.Since(began); took > time.Minute { // it does not end by itself
			t.Errorf("%q took %v", text, took)
		}
		again, err2 := p.Formula.Evaluate(values)
		if (err == nil) != (err2 == nil) || x != again && !(math.IsNaN(x) && math.IsNaN(again)) {
			t.Errorf("%q is not a function of its values: %v and %v, %v and %v", text, x, again, err, err2)
		}
	})
}

// However often a formula is wrong, one error is written.
func TestNestedFormulasAreCheap(t *testing.T) {
	for _, open := range []string{"max(", "-max(", "!", "-(", "(", "true ? max("} {
		closing := strings.Repeat(")", strings.Count(open, "("))
		if strings.Contains(open, "?") {
			closing += " : 1"
		}
		n := 1000 / (len(open) + len(closing))
		text := strings.Repeat(open, n) + "1" + strings.Repeat(closing, n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := formula(t, text)
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 10; err == nil || took > 4096 {
			t.Errorf("%s, %d deep: %d KiB (%v)", open, n, took, err)
		}
	}
}

// Each function of CEL's library, with the dearest arguments that fit, is refused or costs no more than arithmetic of that length.
func TestFormulasAreCheap(t *testing.T) {
	all, err := cel.NewEnv()
	if err != nil {
		t.Fatal(err)
	}
	fill := func(text string) string { return strings.Repeat(text, 300/len(text)) }
	dearest := func(x *types.Type) string {
		switch x.Kind() {
		case types.StringKind:
			return `"(` + fill("x{0,999}") + `)"`
		case types.BytesKind:
			return `b"` + fill("x") + `"`
		case types.ListKind:
			return "[" + fill("queue.value, ") + "1]"
		case types.MapKind:
			return "{1: queue.value}"
		case types.BoolKind:
			return "(queue.value > 1)"
		}
		return "gpu_use.value"
	}
	var texts []string
	for name, f := range all.Functions() {
		for _, o := range f.OverloadDecls() {
			var args []string
			for _, x := range o.ArgTypes() {
				args = append(args, dearest(x))
			}
			call := name + "(" + strings.Join(args, ", ") + ")"
			switch sign, isOperator := operators.FindReverse(name); {
			case name == operators.Conditional:
				call = args[0] + " ? " + args[1] + " : " + args[2]
			case isOperator && len(args) == 2:
				call = args[0] + " " + sign + " " + args[1]
			case isOperator && len(args) == 1:
				call = sign + args[0]
			case o.IsMemberFunction():
				call = args[0] + "." + name + "(" + strings.Join(args[1:], ", ") + ")"
			}
			texts = append(texts, call+" + queue.value + gpu_use.value", "("+call+") ? queue.value : gpu_use.value", "("+call+") == ("+call+") ? queue.value : gpu_use.value")
		}
	}
	sum := "queue.value + gpu_use.value" + strings.Repeat(" + queue.value", 70)
	cost := func(text string) (bytes uint64, ok bool) {
		p, err := formula(t, text)
		if err != nil {
			return 0, false
		}
		values, runs := make([]float64, len(p.Formula.Terms)), 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			_, _ = p.Formula.Evaluate(values)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(runs), true
	}
	most, ok := cost(sum)
	if !ok {
		t.Fatal("a sum is refused")
	}
	accepted := 0
	for _, text := range texts {
		bytes, ok := cost(text)
		if !ok {
			continue
		}
		accepted++
		if bytes > 4*most+16<<10 {
			t.Errorf("%s: %d bytes an evaluation, a sum as long %d", text, bytes, most)
		}
	}
	t.Logf("%d of %d formulas are accepted, a sum of 72 terms takes %d bytes", accepted, len(texts), most)
	if accepted < 10 || accepted > len(texts)/3 {
		t.Errorf("%d of %d formulas are accepted", accepted, len(texts))
	}
}

func BenchmarkFormula(b *testing.B) {
	a := autoscaler(&testing.T{}, combined)
	a.Spec.Formula = "gpu_use.value > 50 ? queue.replicas + 0.5 * gpu_use.replicas : queue.replicas"
	b.Run("compile", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Compile(a); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("evaluate", func(b *testing.B) {
		c, err := Compile(a)
		if err != nil {
			b.Fatal(err)
		}
		values := make([]float64, len(c.Policy.Formula.Terms))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Policy.Formula.Evaluate(values); err != nil {
				b.Fatal(err)
			}
		}
	})
}
