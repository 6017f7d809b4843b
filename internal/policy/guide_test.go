package policy

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

const guide = "../../docs/policy.md"

// The guide has every quantity's defaults, and no other ones.
func TestGuide_AlarmsNameTheDefaults(t *testing.T) {
	_, table, there := strings.Cut(readGuide(t), "| quantity | is |")
	table, _, _ = strings.Cut(table, "\n\n")
	if rows := strings.Count(table, "\n| `"); !there || rows != len(alarmDefaults) {
		t.Errorf("the guide has %d quantities, there are %d", rows, len(alarmDefaults))
	}
	for _, d := range alarmDefaults {
		critical := "-"
		if d.Critical != 0 {
			critical = fmt.Sprint(d.Critical)
		}
		name, figures := fmt.Sprintf(
			"\n| `%s` |",
			d.quantity,
		), fmt.Sprintf("| %v | %s | %v | %v | %v |\n", d.Warning, critical, d.Clear, seconds(d.For), seconds(d.Quiet))
		_, row, named := strings.Cut(table+"\n", name)
		if row, _, _ = strings.Cut(row, "\n"); !named || !strings.HasSuffix(row+"\n", figures) {
			t.Errorf("%s: the guide has %q, want it to end in %q", d.quantity, row, figures)
		}
	}
}

// seconds shows a time as it is written in a policy: "60s".
func seconds(d Duration) string { return fmt.Sprintf("%.0fs", time.Duration(d).Seconds()) }

// The guide has every field with its default, and no other ones.
func TestGuide_FieldsNameTheDefaults(t *testing.T) {
	rows := guideRows(t)
	defaults := fieldDefaults("", reflect.ValueOf(Policy{}.WithDefaults()))
	defaults["keep_free_per_node"] = "2 % of the node, at most 1 GiB" // depends on the node
	for field, want := range defaults {
		if got, ok := rows[field]; !ok || got.byDefault != want {
			t.Errorf("%s: the guide has the default %q, want %q", field, got.byDefault, want)
		}
	}
	for field := range rows {
		if _, ok := defaults[field]; !ok {
			t.Errorf("%s: the guide has a field that there is not", field)
		}
	}
}

// The policy accepts values that the guide allows, and refuses values beyond
// them.
func TestGuide_AllowedValuesAreAccepted(t *testing.T) {
	checked := 0
	for field, row := range guideRows(t) {
		accepted, refused := row.examples()
		for _, value := range accepted {
			if _, err := Parse(strings.NewReader(nested(field, value))); err != nil {
				t.Errorf("%s: %s is refused: %v", field, value, err)
			}
			checked++
		}
		for _, value := range refused {
			if _, err := Parse(strings.NewReader(nested(field, value))); err == nil {
				t.Errorf("%s: %s is accepted, the guide allows %s", field, value, row.allowed)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d values checked: the guide has another form", checked)
	}
}

// The examples of the guide are policies.
func TestGuide_ExamplesAreRead(t *testing.T) {
	blocks := strings.Split(readGuide(t), "```yaml\n")
	if len(blocks) < 2 {
		t.Fatal("the guide has no example")
	}
	for _, block := range blocks[1:] {
		text, _, _ := strings.Cut(block, "```")
		if _, err := Parse(strings.NewReader(text)); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
}

func readGuide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// guideRow is a row of a table of fields.
type guideRow struct{ byDefault, allowed string }

func guideRows(t *testing.T) map[string]guideRow {
	t.Helper()
	rows := map[string]guideRow{}
	for table := range strings.SplitSeq(readGuide(t), "| field | default | allowed | meaning |\n") {
		table, _, _ = strings.Cut(table, "\n\n")
		for line := range strings.Lines(table) {
			cells := strings.Split(strings.TrimSpace(line), " | ")
			if field, ok := strings.CutPrefix(cells[0], "| `"); ok && len(cells) == 4 {
				rows[strings.TrimSuffix(field, "`")] = guideRow{cells[1], cells[2]}
			}
		}
	}
	return rows
}

// examples are values that the row allows, and values that it does not. For
// words: all of them, and another one. For ranges: both ends, and values beyond
// them.
func (r guideRow) examples() (accepted, refused []string) {
	if strings.HasPrefix(r.allowed, "`") {
		for word := range strings.SplitSeq(r.allowed, ", ") {
			accepted = append(accepted, strings.Trim(word, "`"))
		}
		return accepted, []string{"sideways"}
	}
	from, to, ok := strings.Cut(r.allowed, " to ")
	if !ok {
		return nil, nil
	}
	beyond := to + "1s" // "24h1s"
	if most, err := strconv.Atoi(to); err == nil {
		beyond = strconv.Itoa(most + 1)
	}
	return []string{from, to}, []string{beyond, "-1"}
}

// nested writes a field as a policy: {balance: {mode: auto}}.
func nested(field, value string) string {
	parts := strings.Split(field, ".")
	return "{" + strings.Join(parts, ": {") + ": " + value + strings.Repeat("}", len(parts))
}

// fieldDefaults are the defaults of all fields but alarms, as a policy writes them.
func fieldDefaults(path string, v reflect.Value) map[string]string {
	all := map[string]string{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		field, name := v.Field(i), strings.TrimPrefix(path+"."+name, ".")
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			field = field.Elem()
		}
		switch value := field.Interface().(type) {
		case Alarms:
		case Weights, Balance, Movers, Handoff:
			for inner, text := range fieldDefaults(name, field) {
				all[inner] = text
			}
		case topology.Bytes:
			all[name] = strings.ReplaceAll(value.String(), " ", "")
			if value == 0 {
				all[name] = "none"
			}
		case Duration:
			all[name] = shortDuration(value)
		case topology.CPUSet, map[string]Mode, []Window:
			all[name] = "none"
		default:
			all[name] = fmt.Sprint(value)
		}
	}
	return all
}

// shortDuration leaves out minutes and seconds that are 0: "1h", "5m", "10s".
func shortDuration(d Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
