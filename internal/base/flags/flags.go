// SPDX-License-Identifier: Apache-2.0

// Package flags defines the flags of a program in one table: each flag with its
// environment variable, its help and the check of its value. The parser and the
// documentation use the same table.
package flags

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Option is one row of the table.
type Option struct {
	Name  string
	Alias string // one letter, or several letters as in urfave/cli; empty: none
	Env   string // environment variable; empty: none
	// Bind points to the variable: *string, *int, *bool, *[]string or
	// *time.Duration. The default is the variable's initial value.
	Bind  any
	Help  string       // the word in backquotes names the value
	Check func() error // nil: any value is valid; the error names what is allowed
}

// Variable returns the environment variable of a flag of ours.
func Variable(flag string) string {
	return "GPUPILOT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Set returns the flag set of a program that has these options. It prints nothing: the
// caller says what is wrong. An alias of several letters is in the help only.
func Set(program string, options []Option) *pflag.FlagSet {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for i := range options {
		options[i].addTo(fs)
	}
	return fs
}

// addTo defines the flag. The caller handles an alias of several letters, which
// pflag does not support.
func (o *Option) addTo(fs *pflag.FlagSet) {
	help, alias := o.Help, o.Alias
	if len(alias) > 1 {
		help, alias = help+" (-"+alias+")", ""
	}
	if o.Env != "" {
		help += " [" + o.Env + "]"
	}
	switch p := o.Bind.(type) {
	case *string:
		fs.StringVarP(p, o.Name, alias, *p, help)
	case *float64:
		fs.Float64VarP(p, o.Name, alias, *p, help)
	case *int:
		fs.IntVarP(p, o.Name, alias, *p, help)
	case *bool:
		fs.BoolVarP(p, o.Name, alias, *p, help)
	case *[]string:
		fs.StringSliceVarP(p, o.Name, alias, *p, help)
	case *time.Duration:
		fs.DurationVarP(p, o.Name, alias, *p, help)
	default:
		panic(fmt.Sprintf("flag --%s is bound to a %T", o.Name, p))
	}
}

// Parse parses the arguments and the environment variables of a program. A flag has
// precedence over its variable, and the variable over the default. An error names the
// flag or variable, its value and what is allowed.
func Parse(program string, options []Option, args []string, getenv func(string) string) (*pflag.FlagSet, error) {
	fs := Set(program, options)
	if err := fs.Parse(args); err != nil {
		return fs, ParseError(err)
	}
	if fs.NArg() > 0 {
		return fs, fmt.Errorf("unexpected argument %q: only flags are supported", fs.Arg(0))
	}
	for i := range options {
		if err := options[i].settle(fs, getenv); err != nil {
			return fs, err
		}
	}
	return fs, nil
}

// settle uses the environment variable if the flag is not given, and checks the value.
func (o *Option) settle(fs *pflag.FlagSet, getenv func(string) string) error {
	source, err := o.FromEnv(fs, getenv)
	if err != nil || o.Check == nil {
		return err
	}
	if err := o.Check(); err != nil {
		return fmt.Errorf("invalid value %q of %s: %w", fs.Lookup(o.Name).Value.String(), source, err)
	}
	return nil
}

// FromEnv sets the value from the environment variable if the flag is not given. It
// returns the source of the value, the flag or the variable, for errors.
func (o *Option) FromEnv(fs *pflag.FlagSet, getenv func(string) string) (source string, err error) {
	f := fs.Lookup(o.Name)
	source = "--" + o.Name
	if o.Env == "" || f.Changed {
		return source, nil
	}
	if v := getenv(o.Env); v != "" {
		source = o.Env
		if err := f.Value.Set(v); err != nil {
			return source, fmt.Errorf("invalid value %q of %s (--%s): want %s", v, o.Env, o.Name, ValueKind(f))
		}
	}
	return source, nil
}

// ParseError replaces pflag's error about an invalid value by one that names the
// valid values.
func ParseError(err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := bad.GetFlag()
		return fmt.Errorf("invalid value %q of --%s: want %s", bad.GetValue(), f.Name, ValueKind(f))
	}
	return err
}

// ValueKind describes the values of a flag, such as "a whole number".
func ValueKind(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, such as 1.5s"
	}
	return "a " + f.Value.Type()
}

// OneOf checks that a value is one of those allowed.
func OneOf(p *string, allowed ...string) func() error {
	return func() error {
		if !slices.Contains(allowed, *p) {
			return fmt.Errorf("want one of %s", strings.Join(allowed, ", "))
		}
		return nil
	}
}

// Between checks that a value is from lo to hi.
func Between[T cmp.Ordered](p *T, lo, hi T) func() error {
	return func() error {
		if !(*p >= lo && *p <= hi) { // also NaN
			return fmt.Errorf("want a value from %v to %v", lo, hi)
		}
		return nil
	}
}

// NotEmpty checks that a value is not empty.
func NotEmpty(p *string) func() error {
	return func() error {
		if *p == "" {
			return errors.New("must not be empty")
		}
		return nil
	}
}

// IsAddress checks that a value is an address to listen on.
func IsAddress(p *string) func() error {
	return func() error {
		if _, _, err := net.SplitHostPort(*p); err != nil {
			return errors.New("want host:port, or :port for all addresses")
		}
		return nil
	}
}

// IsAddressOrEmpty is IsAddress, and allows the empty value.
func IsAddressOrEmpty(p *string) func() error {
	return func() error {
		if *p == "" {
			return nil
		}
		return IsAddress(p)()
	}
}

// AreNetworks checks that values are networks in CIDR notation.
func AreNetworks(p *[]string) func() error {
	return func() error {
		for _, s := range *p {
			if n, err := netip.ParsePrefix(s); err != nil || n != n.Masked() {
				return fmt.Errorf("%q is not a network: give its first address and the prefix length, such as 10.244.0.0/16", s)
			}
		}
		return nil
	}
}

// Networks returns networks that were checked.
func Networks(list []string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
