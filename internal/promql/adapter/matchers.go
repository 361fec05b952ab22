// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// matcher is a condition for one label, with the literal values that it is made of.
type matcher struct {
	*labels.Matcher
	values []string
}

// newMatcher returns a matcher of literal values. Without values, equal means that the
// label is absent or empty.
func newMatcher(equal bool, label string, values ...string) (matcher, error) {
	if !labelName.MatchString(label) {
		return matcher{}, fmt.Errorf("%q is not the name of a label", label)
	}
	kind := map[[2]bool]labels.MatchType{
		{true, false}: labels.MatchEqual, {true, true}: labels.MatchRegexp,
		{false, false}: labels.MatchNotEqual, {false, true}: labels.MatchNotRegexp,
	}[[2]bool{equal, len(values) > 1}]
	text := ""
	switch len(values) {
	case 0:
	case 1:
		text = values[0]
	default:
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = regexp.QuoteMeta(v)
		}
		text = strings.Join(quoted, "|")
	}
	m, err := labels.NewMatcher(kind, label, text)
	return matcher{m, values}, err
}

// anyValue returns a matcher of all values of a label but the empty one.
func anyValue(label string) matcher {
	return matcher{Matcher: labels.MustNewMatcher(labels.MatchNotEqual, label, "")}
}

// text returns the matcher in PromQL. Its value is quoted, so that it can contain any
// characters.
func (m matcher) text() string { return m.Name + m.Type.String() + strconv.Quote(m.Value) }

// fromSelector returns the matchers of a Kubernetes label selector.
func fromSelector(s kubelabels.Selector) (out []matcher, err error) {
	requirements, selectable := s.Requirements()
	if !selectable {
		return nil, fmt.Errorf("the selector matches nothing")
	}
	for i := range requirements {
		r := &requirements[i]
		var equal bool
		values := slices.Sorted(slices.Values(r.Values().UnsortedList()))
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			equal = true
		case selection.NotEquals, selection.NotIn:
		case selection.Exists:
			values = nil
		case selection.DoesNotExist:
			equal, values = true, nil
		default:
			return nil, fmt.Errorf("the selector %s has the operator %q, which PromQL has no matcher for", r, r.Operator())
		}
		m, err := newMatcher(equal, r.Key(), values...)
		if err != nil {
			return nil, fmt.Errorf("the selector %s cannot be used in PromQL: %w", r, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// arguments are the arguments of a metricsQuery template.
type arguments struct {
	Series            string
	LabelMatchers     string
	LabelValuesByName map[string]string
	GroupBy           string
	GroupBySlice      []string
}

func newArguments(series string, matchers []matcher, groupBy ...string) arguments {
	a := arguments{Series: series, LabelValuesByName: map[string]string{}, GroupBy: strings.Join(groupBy, ","), GroupBySlice: groupBy}
	texts := make([]string, len(matchers))
	for i, m := range matchers {
		texts[i] = m.text()
		a.LabelValuesByName[m.Name] = strings.Join(m.values, "|")
	}
	a.LabelMatchers = strings.Join(texts, ",")
	return a
}

// plainValue matches values that are safe within quotes of a template's own text, where
// they are not escaped. All names of Kubernetes objects and all label values match.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9_.:-]*$`)

// checkPlain refuses values that could end a quoted string.
func checkPlain(matchers []matcher) error {
	for _, m := range matchers {
		for _, v := range m.values {
			if !plainValue.MatchString(v) {
				return fmt.Errorf("%s: %.60q cannot be used with .LabelValuesByName: it has characters other than letters, digits, and _.:-", m.Name, v)
			}
		}
	}
	return nil
}

// Matchers returns a Kubernetes label selector as PromQL matchers, separated by commas.
func Matchers(s kubelabels.Selector) (string, error) {
	ms, err := fromSelector(s)
	if err != nil {
		return "", err
	}
	return newArguments("", ms).LabelMatchers, nil
}
