def write_page(rows, home): return ""
