// SPDX-License-Identifier: Apache-2.0

// Package kubeflags checks the values of flags that are Kubernetes' names, selectors and
// quantities.
package kubeflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// IsName checks that a value is the name of a namespace or of a Service.
func IsName(p *string) func() error {
	return func() error {
		if errs := validation.IsDNS1123Label(*p); len(errs) > 0 {
			return errors.New(strings.Join(errs, "; "))
		}
		return nil
	}
}

// IsNameOrEmpty is IsName, and allows the empty value.
func IsNameOrEmpty(p *string) func() error {
	return func() error {
		if *p == "" {
			return nil
		}
		return IsName(p)()
	}
}

// Service splits NAME[:PORT].
func Service(s string) (name string, port int32, err error) {
	name, text, given := strings.Cut(s, ":")
	n := uint64(443)
	if given {
		n, err = strconv.ParseUint(text, 10, 16)
	}
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("port %q: want a number from 1 to 65535", text)
	}
	return name, int32(n), IsName(&name)()
}

// IsService checks that a value is what Service splits.
func IsService(p *string) func() error {
	return func() error {
		_, _, err := Service(*p)
		return err
	}
}

// AreNames checks that values are names of namespaces.
func AreNames(p *[]string) func() error {
	return func() error {
		for i := range *p {
			if err := IsName(&(*p)[i])(); err != nil {
				return fmt.Errorf("namespace %q: %w", (*p)[i], err)
			}
		}
		return nil
	}
}

// AreNamespaces checks that values are names of namespaces, or all, such as *.
func AreNamespaces(p *[]string, all string) func() error {
	return func() error {
		for _, ns := range *p {
			if ns != all && len(validation.IsDNS1123Label(ns)) > 0 {
				return fmt.Errorf("%q is not the name of a namespace; * alone means all namespaces, and patterns are not supported", ns)
			}
		}
		return nil
	}
}

// AreResources checks that values are names of extended resources.
func AreResources(p *[]string) func() error {
	return func() error {
		for _, name := range *p {
			if errs := validation.IsQualifiedName(name); len(errs) > 0 || !strings.Contains(name, "/") {
				return fmt.Errorf("%q is not the name of an extended resource, such as example.com/gpu", name)
			}
		}
		return nil
	}
}

// IsSelector checks that a value is a label selector.
func IsSelector(p *string) func() error {
	return func() error {
		_, err := labels.Parse(*p)
		return err
	}
}

// AreSelectors checks that a value is what Selectors parses.
func AreSelectors(p *string) func() error {
	return func() error {
		_, err := Selectors(*p)
		return err
	}
}

// Selector parses a label selector that was checked. Any other text selects nothing.
func Selector(s string) labels.Selector {
	selector, err := labels.Parse(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// Selectors parses several label selectors, separated by semicolons.
func Selectors(s string) (out []labels.Selector, err error) {
	for part := range strings.SplitSeq(s, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		sel, err := labels.Parse(part)
		if err != nil {
			return nil, fmt.Errorf("label selector %q: %w", part, err)
		}
		out = append(out, sel)
	}
	return out, nil
}

// IsQuantity checks that a value is a number of bytes from lo to hi, which bounds names,
// such as "from 16Mi to 1Ti, such as 512Mi".
func IsQuantity(p *string, lo, hi int64, bounds string) func() error {
	return func() error {
		if q, err := resource.ParseQuantity(*p); err != nil || q.Value() < lo || q.Value() > hi {
			return fmt.Errorf("want a number of bytes %s", bounds)
		}
		return nil
	}
}

// Bytes returns the value of a quantity that was checked.
func Bytes(s string) int64 {
	q, _ := resource.ParseQuantity(s)
	return q.Value()
}
