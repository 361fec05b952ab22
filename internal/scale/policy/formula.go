// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/env"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// formulaCost bounds the work of one evaluation, in CEL's units. A formula has no loops, so one of weight.MostFormula
// characters stays far below it.
const formulaCost = 10_000

// compileFormula translates spec.formula. signals are the compiled signals of each entry of the spec.
func compileFormula(c *Compiled, spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) *field.Error {
	text := strings.TrimSpace(spec.Formula)
	if spec.Formula == "" {
		return nil
	}
	terms := termsOf(c, spec.Signals)
	program, used, err := parseFormula(text, slices.Collect(maps.Keys(terms)))
	if err != nil {
		return field.Invalid(path, spec.Formula, err.Error())
	}
	f := &scale.Formula{Text: text, Evaluate: evaluator(program, used)}
	inFormula := map[int]bool{}
	for _, name := range used {
		t := terms[name]
		f.Terms = append(f.Terms, t)
		inFormula[c.Sources[t.Signals[0]].Signal] = true
	}
	for i := range spec.Signals {
		s := &spec.Signals[i]
		switch {
		case !inFormula[i] && s.Activation == nil:
			return field.Invalid(path, spec.Formula, fmt.Sprintf("does not use %s, which would have no effect: name the signal and use it, or remove it", describe(s, i)))
		case inFormula[i] && s.Fallback != nil && s.Fallback.StrVal == "Ignore":
			return field.Invalid(path, spec.Formula, fmt.Sprintf("needs a value of %s, whose fallback is Ignore: use Hold, Max or a number of replicas", s.Name))
		}
	}
	c.Policy.Formula = f
	return nil
}

// describe names an entry of spec.signals.
func describe(s *v1alpha1.Signal, i int) string {
	if s.Name != "" {
		return "signal " + s.Name
	}
	return fmt.Sprintf("spec.signals[%d], which has no name", i)
}

// termsOf returns the variables of a formula: two for each named entry of the spec. A - in a name is _ in a formula,
// where it would be a subtraction.
func termsOf(c *Compiled, in []v1alpha1.Signal) map[string]scale.Term {
	terms := map[string]scale.Term{}
	for i := range in {
		if in[i].Name == "" {
			continue
		}
		var signals []int
		for k := range c.Sources {
			if c.Sources[k].Signal == i {
				signals = append(signals, k)
			}
		}
		if len(signals) == 0 {
			continue // it did not compile
		}
		name := strings.ReplaceAll(in[i].Name, "-", "_")
		for suffix, replicas := range map[string]bool{".value": false, ".replicas": true} {
			terms[name+suffix] = scale.Term{Name: name + suffix, Signals: signals, Replicas: replicas}
		}
	}
	return terms
}

// parseFormula compiles a formula over variables. used are those that it reads, sorted.
func parseFormula(text string, variables []string) (program cel.Program, used []string, err error) {
	base, err := formulaEnv()
	if err != nil {
		return nil, nil, err
	}
	var declared []cel.EnvOption
	for _, name := range variables {
		declared = append(declared, cel.Variable(name, cel.DoubleType))
	}
	own, err := base.Extend(declared...)
	if err != nil {
		return nil, nil, err
	}
	parsed, issues := own.Parse(text)
	if problem := firstOf(issues); problem != "" {
		return nil, nil, errors.New(problem)
	}
	expr := parsed.NativeRep().Expr()
	if lists := ast.MatchDescendants(ast.NavigateExpr(parsed.NativeRep(), expr), isOther); len(lists) > 0 {
		return nil, nil, errors.New("has a list, a map or a message: a formula has numbers, signals and operators")
	}
	ast.PostOrderVisit(expr, ast.NewExprVisitor(toDouble))
	checked, issues := own.Check(parsed)
	if problem := firstOf(issues); problem != "" {
		return nil, nil, fmt.Errorf("%s; its variables are %s", problem, listed(variables))
	}
	if checked.OutputType() != cel.DoubleType {
		return nil, nil, fmt.Errorf("is a %s, not a number of replicas", checked.OutputType())
	}
	for _, r := range checked.NativeRep().ReferenceMap() {
		if r.Name != "" && slices.Contains(variables, r.Name) && !slices.Contains(used, r.Name) {
			used = append(used, r.Name)
		}
	}
	if len(used) == 0 {
		return nil, nil, fmt.Errorf("uses no signal; its variables are %s", listed(variables))
	}
	slices.Sort(used)
	program, err = own.Program(checked, cel.CostLimit(formulaCost))
	return program, used, err
}

// formulaFunctions are the functions of CEL's library that a formula may use, with the overloads over numbers: what
// each does takes no longer for any argument. The others, such as matches, take as long as a tenant likes.
var formulaFunctions = map[string][]string{
	operators.Add: {overloads.AddDouble}, operators.Subtract: {overloads.SubtractDouble}, operators.Negate: {overloads.NegateDouble},
	operators.Multiply: {overloads.MultiplyDouble}, operators.Divide: {overloads.DivideDouble},
	operators.Less: {overloads.LessDouble}, operators.LessEquals: {overloads.LessEqualsDouble},
	operators.Greater: {overloads.GreaterDouble}, operators.GreaterEquals: {overloads.GreaterEqualsDouble},
	operators.Equals: nil, operators.NotEquals: nil, // of literals, which are as short as the formula
	operators.LogicalAnd: nil, operators.LogicalOr: nil, operators.LogicalNot: nil, operators.Conditional: nil,
}

// formulaEnv is what all formulas may use: formulaFunctions, and max and min. It has no loops.
var formulaEnv = sync.OnceValues(func() (*cel.Env, error) {
	subset := env.NewLibrarySubset().SetDisableMacros(true)
	for name, list := range formulaFunctions {
		f := env.NewFunction(name)
		for _, id := range list {
			f.Overloads = append(f.Overloads, env.NewOverload(id, nil, nil))
		}
		subset.AddIncludedFunctions(f)
	}
	return cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(subset)),
		pair("max", func(a, b float64) float64 { return max(a, b) }),
		pair("min", func(a, b float64) float64 { return min(a, b) }),
	)
})

// pair declares a function of two or three numbers.
func pair(name string, f func(a, b float64) float64) cel.EnvOption {
	number := cel.DoubleType
	fold := func(args ...ref.Val) ref.Val {
		x := float64(args[0].(types.Double))
		for _, arg := range args[1:] {
			x = f(x, float64(arg.(types.Double)))
		}
		return types.Double(x)
	}
	return cel.Function(name,
		cel.Overload(name+"_2", []*cel.Type{number, number}, number, cel.FunctionBinding(fold)),
		cel.Overload(name+"_3", []*cel.Type{number, number, number}, number, cel.FunctionBinding(fold)))
}

// isOther reports whether an expression is none of a formula. The type of a list of lists takes as many bytes as the
// square of its depth to check.
func isOther(e ast.NavigableExpr) bool {
	switch e.Kind() {
	case ast.LiteralKind, ast.IdentKind, ast.SelectKind, ast.CallKind:
		return false
	}
	return true
}

// toDouble makes a whole number a double, so that queue.value / 60 needs no 60.0.
func toDouble(e ast.Expr) {
	if e.Kind() != ast.LiteralKind {
		return
	}
	if n, ok := e.AsLiteral().(types.Int); ok {
		e.SetKindCase(ast.NewExprFactory().NewLiteral(e.ID(), types.Double(n)))
	}
}

// evaluator returns the function that evaluates a program over the values of its variables.
func evaluator(program cel.Program, used []string) func([]float64) (float64, error) {
	return func(values []float64) (float64, error) {
		vars := make(map[string]any, len(used))
		for i, name := range used {
			vars[name] = values[i]
		}
		out, _, err := program.Eval(vars)
		if err != nil {
			return 0, err
		}
		x, ok := out.(types.Double)
		if !ok {
			return 0, fmt.Errorf("the result is a %s, not a number", out.Type())
		}
		return float64(x), nil
	}
}

// firstOf is the first of CEL's errors, with its column; empty: there is none. CEL's own text repeats the formula for each
// of them, in as many steps as the square of its length.
func firstOf(issues *cel.Issues) string {
	all := issues.Errors()
	if len(all) == 0 {
		return ""
	}
	first := slices.MinFunc(all, func(a, b *cel.Error) int {
		return cmp.Or(a.Location.Line()-b.Location.Line(), a.Location.Column()-b.Location.Column())
	})
	line, _, _ := strings.Cut(first.Message, "\n")
	if first.Location.Column() < 0 {
		return line
	}
	return fmt.Sprintf("column %d: %s", first.Location.Column()+1, line)
}

func listed(variables []string) string {
	if len(variables) == 0 {
		return "those of named signals, and no signal has a name"
	}
	slices.Sort(variables)
	return strings.Join(variables, ", ")
}
