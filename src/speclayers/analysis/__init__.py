"""From one model's tables to the study's database, statistics, charts and page; knows no torch."""
