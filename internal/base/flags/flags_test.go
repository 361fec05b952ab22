// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlagsThenEnvironmentThenDefaults(t *testing.T) {
	f := func(args []string, env map[string]string, want time.Duration, wantSource, wantErr string) {
		t.Helper()
		every := time.Second
		o := Option{Name: "every", Alias: "e", Env: "EVERY", Bind: &every, Help: "`time` between"}
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addTo(fs)
		source := ""
		err := ParseError(fs.Parse(args))
		if err == nil {
			source, err = o.FromEnv(fs, func(name string) string { return env[name] })
		}
		if err != nil != (wantErr != "") || err != nil && err.Error() != wantErr {
			t.Errorf("%v, %v: error %v, want %q", args, env, err, wantErr)
		}
		if err == nil && (every != want || source != wantSource) {
			t.Errorf("%v, %v: %v from %s, want %v from %s", args, env, every, source, want, wantSource)
		}
	}
	f(nil, nil, time.Second, "--every", "")
	f(nil, map[string]string{"EVERY": "2s"}, 2*time.Second, "EVERY", "")
	f([]string{"-e", "3s"}, map[string]string{"EVERY": "2s"}, 3*time.Second, "--every", "")
	f([]string{"--every", "1s"}, map[string]string{"EVERY": "2s"}, time.Second, "--every", "")
	f(nil, map[string]string{"EVERY": "2"}, 0, "", `invalid value "2" of EVERY (--every): want a duration, such as 1.5s`)
	f([]string{"--every=soon"}, nil, 0, "", `invalid value "soon" of --every: want a duration, such as 1.5s`)
}

func TestVariable(t *testing.T) {
	if got := Variable("page-auth"); got != "GPUPILOT_PAGE_AUTH" {
		t.Error(got)
	}
}

func TestChecks(t *testing.T) {
	word, number := "b", 5
	f := func(what string, check func() error, want string) {
		t.Helper()
		got := ""
		if err := check(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	f("one of", OneOf(&word, "a", "b"), "")
	f("none of", OneOf(&word, "a", "c"), "want one of a, c")
	f("within", Between(&number, 5, 5), "")
	f("above", Between(&number, 1, 4), "want a value from 1 to 4")
	f("below", Between(&number, 6, 9), "want a value from 6 to 9")
	f("not empty", NotEmpty(&word), "")
	word = ""
	f("empty", NotEmpty(&word), "must not be empty")
}
