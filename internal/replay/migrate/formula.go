// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kedaFormula reads an expression of KEDA's scalingModifiers, which are of the language Expr, and writes it in CEL.
// Operators and their precedence are the same in both; functions over lists are written out.
type kedaFormula struct {
	tokens  []string
	at      int
	names   map[string]string // of triggers → in CEL
	element string            // what # is
	depth   int
	written int // bytes of what was written out, with repetitions
}

// The bounds of a formula, which is repeated for each element of a list.
const (
	maxFormulaText  = 4096
	maxFormulaDepth = 32
)

var formulaToken = regexp.MustCompile(`^(?:[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]+)?|[A-Za-z_][A-Za-z0-9_]*|\*\*|\?\?|\|\||&&|[<>=!]=|\.\.|[-+*/%^<>!?:()\[\]{},#.|;])`)

// toCEL returns a formula of KEDA in CEL. names are the triggers' names in CEL.
func toCEL(formula string, names map[string]string) (string, error) {
	p := kedaFormula{names: names}
	if len(formula) > maxFormulaText {
		return "", fmt.Errorf("it has %d bytes; at most %d are translated", len(formula), maxFormulaText)
	}
	for rest := strings.TrimSpace(formula); rest != ""; rest = strings.TrimSpace(rest) {
		t := formulaToken.FindString(rest)
		if t == "" {
			return "", fmt.Errorf("%q is not translated", excerptOf(rest))
		}
		p.tokens, rest = append(p.tokens, t), rest[len(t):]
	}
	out, err := p.ternary()
	if err == nil && p.at < len(p.tokens) {
		err = fmt.Errorf("%q is not translated", p.tokens[p.at])
	}
	return out, err
}

func (p *kedaFormula) peek() string {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return ""
}

// take takes one of some tokens; empty: the next one is none of them.
func (p *kedaFormula) take(allowed ...string) string {
	t := p.peek()
	for _, a := range allowed {
		if t == a && t != "" {
			p.at++
			return t
		}
	}
	return ""
}

func (p *kedaFormula) want(token string) error {
	if p.take(token) == "" {
		return fmt.Errorf("%q instead of %q", p.peek(), token)
	}
	return nil
}

// write accounts for a text that is written.
func (p *kedaFormula) write(text string) (string, error) {
	if p.written += len(text); p.written > 64*maxFormulaText {
		return "", fmt.Errorf("it is too long, written out")
	}
	return text, nil
}

func (p *kedaFormula) ternary() (string, error) {
	if p.depth++; p.depth > maxFormulaDepth {
		return "", fmt.Errorf("it is nested more than %d deep", maxFormulaDepth)
	}
	defer func() { p.depth-- }()
	condition, err := p.binary(0)
	if err != nil || p.take("?") == "" {
		return condition, err
	}
	yes, err := p.ternary()
	if err != nil {
		return "", err
	}
	if err := p.want(":"); err != nil {
		return "", err
	}
	no, err := p.ternary()
	if err != nil {
		return "", err
	}
	return p.write(condition + " ? " + yes + " : " + no)
}

// levels are the binary operators by their precedence, the lowest first, with those of CEL.
var levels = [][]struct{ keda, cel string }{
	{{"||", "||"}, {"or", "||"}},
	{{"&&", "&&"}, {"and", "&&"}},
	{{"==", "=="}, {"!=", "!="}, {"<=", "<="}, {">=", ">="}, {"<", "<"}, {">", ">"}},
	{{"+", "+"}, {"-", "-"}},
	{{"*", "*"}, {"/", "/"}},
}

func (p *kedaFormula) binary(level int) (string, error) {
	if level == len(levels) {
		return p.unary()
	}
	left, err := p.binary(level + 1)
	for err == nil {
		op := ""
		for _, o := range levels[level] {
			if p.take(o.keda) != "" {
				op = o.cel
				break
			}
		}
		if op == "" {
			return left, nil
		}
		var right string
		if right, err = p.binary(level + 1); err == nil {
			left, err = p.write(left + " " + op + " " + right)
		}
	}
	return "", err
}

func (p *kedaFormula) unary() (string, error) {
	switch op := p.take("-", "+", "!", "not"); op {
	case "":
		return p.power()
	case "+":
		return p.unary()
	default:
		x, err := p.deeper(p.unary)
		return strings.Replace(op, "not", "!", 1) + "(" + x + ")", err
	}
}

// deeper parses a part one level deeper.
func (p *kedaFormula) deeper(parse func() (string, error)) (string, error) {
	if p.depth++; p.depth > maxFormulaDepth {
		return "", fmt.Errorf("it is nested more than %d deep", maxFormulaDepth)
	}
	defer func() { p.depth-- }()
	return parse()
}

// power is a whole power, written as a product.
func (p *kedaFormula) power() (string, error) {
	base, err := p.primary()
	if err != nil || p.take("**", "^") == "" {
		return base, err
	}
	n, err := strconv.Atoi(p.peek())
	if err != nil || n < 1 || n > 8 {
		return "", fmt.Errorf("the power %q: only whole ones from 1 to 8 have an equivalent", p.peek())
	}
	p.at++
	return p.write("(" + base + strings.Repeat(" * "+base, n-1) + ")")
}

func (p *kedaFormula) primary() (string, error) {
	t := p.peek()
	p.at++
	switch {
	case t == "(":
		x, err := p.ternary()
		if err != nil {
			return "", err
		}
		return "(" + x + ")", p.want(")")
	case t == "#" && p.element != "":
		return p.element, nil
	case t != "" && t[0] >= '0' && t[0] <= '9':
		return strings.ReplaceAll(t, "_", ""), nil
	case t == "true" || t == "false":
		return t, nil
	case t == "":
		return "", fmt.Errorf("it ends too early")
	case p.peek() == "(" && isWord(t):
		return p.call(t)
	case isWord(t):
		if name, ok := p.names[t]; ok {
			return name, nil
		}
		return "", fmt.Errorf("undeclared reference to '%s': the triggers with an equivalent and a name are %s", t, namesIn(p.names))
	}
	return "", fmt.Errorf("%q is not translated", t)
}

func namesIn(names map[string]string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func isWord(t string) bool {
	return t != "" && (t[0] == '_' || t[0] >= 'A' && t[0] <= 'Z' || t[0] >= 'a' && t[0] <= 'z')
}

// call translates the call of a function. Lists are arguments only.
func (p *kedaFormula) call(name string) (string, error) {
	p.at++ // (
	var args []string
	list, predicate := false, -1
	for p.take(")") == "" {
		switch {
		case p.take("[") != "":
			list = true
			for p.take("]") == "" {
				x, err := p.ternary()
				if err != nil {
					return "", err
				}
				args = append(args, x)
				if p.peek() != "]" {
					if err := p.want(","); err != nil {
						return "", err
					}
				}
			}
		case list && predicate < 0:
			predicate = p.at
			if err := p.skip(); err != nil {
				return "", err
			}
		default:
			x, err := p.ternary()
			if err != nil {
				return "", err
			}
			args = append(args, x)
		}
		if p.peek() != ")" {
			if err := p.want(","); err != nil {
				return "", err
			}
		}
	}
	if predicate >= 0 {
		var err error
		if args, err = p.each(args, predicate); err != nil {
			return "", err
		}
	}
	out, err := combine(name, args, list, predicate >= 0)
	if err != nil {
		return "", err
	}
	return p.write(out)
}

// skip skips a predicate.
func (p *kedaFormula) skip() error {
	for depth := 0; ; p.at++ {
		switch p.peek() {
		case "":
			return fmt.Errorf("it ends too early")
		case "(", "{", "[":
			depth++
		case ")", "}", "]":
			if depth == 0 {
				return nil
			}
			depth--
		case ",":
			if depth == 0 {
				return nil
			}
		}
	}
}

// each returns a predicate for each element of a list.
func (p *kedaFormula) each(elements []string, predicate int) (out []string, err error) {
	end, outer := p.at, p.element
	defer func() { p.at, p.element = end, outer }()
	for _, e := range elements {
		p.at, p.element = predicate, "("+e+")"
		braces := p.take("{") != ""
		x, err := p.ternary()
		if err != nil {
			return nil, err
		}
		if braces {
			if err := p.want("}"); err != nil {
				return nil, err
			}
		}
		if t := p.peek(); t != ")" && t != "," {
			return nil, fmt.Errorf("%q is not translated", t)
		}
		out = append(out, "("+x+")")
	}
	return out, nil
}

// combine writes a function out.
func combine(name string, args []string, list, each bool) (string, error) {
	n := len(args)
	if n == 0 {
		return "", fmt.Errorf("%s without values", name)
	}
	for i, x := range args {
		if name != "max" && name != "min" && !each && strings.Contains(x, " ") {
			args[i] = "(" + x + ")"
		}
	}
	switch {
	case name == "max" || name == "min":
		if each {
			break
		}
		if n == 1 {
			return "(" + args[0] + ")", nil
		}
		out := args[0]
		for rest := args[1:]; len(rest) > 0; {
			k := min(2, len(rest))
			out, rest = name+"("+out+", "+strings.Join(rest[:k], ", ")+")", rest[k:]
		}
		return out, nil
	case name == "sum" && list:
		return "(" + strings.Join(args, " + ") + ")", nil
	case name == "mean" && !each:
		return fmt.Sprintf("((%s) / %d.0)", strings.Join(args, " + "), n), nil
	case name == "count" && each:
		for i := range args {
			args[i] = "(" + args[i] + " ? 1.0 : 0.0)"
		}
		return "(" + strings.Join(args, " + ") + ")", nil
	case name == "any" && each:
		return "(" + strings.Join(args, " || ") + ")", nil
	case name == "all" && each:
		return "(" + strings.Join(args, " && ") + ")", nil
	case name == "abs" && n == 1:
		return fmt.Sprintf("max(%s, -(%[1]s))", args[0]), nil
	case name == "float" && n == 1:
		return "(" + args[0] + ")", nil
	}
	return "", fmt.Errorf("the function %s has no equivalent", name)
}
