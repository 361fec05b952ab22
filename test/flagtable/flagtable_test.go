// SPDX-License-Identifier: Apache-2.0

package flagtable

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/base/flags"
)

func TestTable(t *testing.T) {
	list, on, file := []string{"a", "b"}, false, ""
	got := Markdown([]flags.Option{
		{Name: "list", Env: "LIST", Bind: &list, Help: "`names` of it"},
		{Name: "on", Alias: "o", Bind: &on, Help: "whether"},
		{Name: "file", Alias: "cf", Bind: &file, Help: "`file` to read"},
	})
	const want = "| flag | variable | default | meaning |\n|---|---|---|---|\n" +
		"| `--list` | `LIST` | `a,b` | names of it |\n| `-o`, `--on` |  |  | whether |\n| `-cf`, `--file` |  |  | file to read |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
