// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

// parseTemplate parses a template of the file. It refuses what has no bound: a loop over
// anything but the arguments, and templates that call each other.
func parseTemplate(text string) (*template.Template, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("has %d bytes; at most %d are allowed", len(text), maxText)
	}
	t, err := template.New("").Delims("<<", ">>").Option("missingkey=zero").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("is not a Go template with the delimiters << and >>: %w", err)
	}
	if err := checkNode(t.Root); err != nil {
		return nil, err
	}
	walk(t.Root, func(n parse.Node) {
		if err == nil {
			err = checkGrowth(n)
		}
	})
	return t, err
}

// functions may be called by a template. Others, such as js, can grow a text
// exponentially when they are repeated.
var functions = []string{"and", "or", "not", "len", "index", "slice", "eq", "ne", "lt", "le", "gt", "ge", "print", "println", "printf"}

// growing is what a format must not contain: explicit indexes, which repeat an argument,
// and widths of four digits or from arguments.
var growing = regexp.MustCompile(`%[^a-zA-Z%]*(\[|\*|[0-9]{4})`)

// checkGrowth refuses nodes that can make a text grow exponentially.
func checkGrowth(n parse.Node) error {
	switch n := n.(type) {
	case *parse.IdentifierNode:
		if !slices.Contains(functions, n.Ident) {
			return fmt.Errorf("%s: is not one of the functions %s", n, strings.Join(functions, ", "))
		}
	case *parse.StringNode:
		if growing.MatchString(n.Text) {
			return fmt.Errorf("%s: a format must have no explicit indexes and no widths over 999", n)
		}
	case *parse.PipeNode:
		if len(n.Decl) > 0 && (len(n.Cmds) != 1 || len(n.Cmds[0].Args) != 1) {
			return fmt.Errorf("%s: a variable must not be the result of a function", n)
		}
	}
	return nil
}

// checkNode refuses unbounded nodes.
func checkNode(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, x := range n.Nodes {
			if err := checkNode(x); err != nil {
				return err
			}
		}
	case *parse.IfNode:
		return checkBranch(&n.BranchNode)
	case *parse.WithNode:
		return checkBranch(&n.BranchNode)
	case *parse.RangeNode:
		if !rangesOverArguments(n) {
			return fmt.Errorf("%s: a range must be over .GroupBySlice or .LabelValuesByName", n.Pipe)
		}
		return checkBranch(&n.BranchNode)
	case *parse.TemplateNode:
		return fmt.Errorf("%s: a template must not call another one", n)
	}
	return nil
}

func checkBranch(n *parse.BranchNode) error {
	if err := checkNode(n.List); err != nil {
		return err
	}
	return checkNode(n.ElseList)
}

// rangesOverArguments reports whether a range is over a list or a map of the arguments.
func rangesOverArguments(n *parse.RangeNode) bool {
	if len(n.Pipe.Cmds) != 1 || len(n.Pipe.Cmds[0].Args) != 1 {
		return false
	}
	switch x := n.Pipe.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		return len(x.Ident) == 1 && (x.Ident[0] == "GroupBySlice" || x.Ident[0] == "LabelValuesByName")
	case *parse.VariableNode: // $.GroupBySlice
		return len(x.Ident) == 2 && x.Ident[0] == "$" && (x.Ident[1] == "GroupBySlice" || x.Ident[1] == "LabelValuesByName")
	}
	return false
}

// usesField reports whether a template reads a field of its arguments.
func usesField(n parse.Node, name string) (uses bool) {
	walk(n, func(x parse.Node) {
		switch x := x.(type) {
		case *parse.FieldNode:
			uses = uses || x.Ident[0] == name
		case *parse.VariableNode:
			uses = uses || len(x.Ident) == 1 && x.Ident[0] == "$" || len(x.Ident) > 1 && x.Ident[1] == name
		case *parse.DotNode: // such as index . "LabelValuesByName", or the whole, as $ alone
			uses = true
		}
	})
	return uses
}

// walk visits the nodes of a template.
func walk(n parse.Node, visit func(parse.Node)) {
	visit(n)
	branch := func(b *parse.BranchNode) {
		walk(b.Pipe, visit)
		walk(b.List, visit)
		if b.ElseList != nil {
			walk(b.ElseList, visit)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, x := range n.Nodes {
			walk(x, visit)
		}
	case *parse.ActionNode:
		walk(n.Pipe, visit)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			walk(c, visit)
		}
	case *parse.CommandNode:
		for _, a := range n.Args {
			walk(a, visit)
		}
	case *parse.ChainNode:
		walk(n.Node, visit)
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	}
}
